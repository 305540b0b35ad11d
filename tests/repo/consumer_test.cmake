# Installs the build tree to a temporary prefix, then configures, builds and runs examples/consumer
# against it, as another project would.
set(prefix "${WORK_DIR}/prefix")
file(REMOVE_RECURSE "${WORK_DIR}")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " text)
    message(FATAL_ERROR "failed (${result}): ${text}")
  endif()
endfunction()

run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${prefix}")

# Nothing of this build or machine is in what others will include.
file(GLOB_RECURSE exported "${prefix}/*.cmake")
foreach(file IN LISTS exported)
  file(READ "${file}" text)
  foreach(leak IN ITEMS "${SOURCE_DIR}" "-Werror" "-fsanitize" "-fuse-ld")
    string(FIND "${text}" "${leak}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${file} contains ${leak}")
    endif()
  endforeach()
endforeach()

# Out of the source tree, so that no header can be found there by accident.
run("${CMAKE_COMMAND}" -S "${SOURCE_DIR}/examples/consumer" -B "${WORK_DIR}/build" -G "${GENERATOR}"
    "-DCMAKE_PREFIX_PATH=${prefix}" "-DCMAKE_CXX_COMPILER=${CXX}" -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run("${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
run("${WORK_DIR}/build/consumer")
run("${WORK_DIR}/build/greeting")
run("${prefix}/bin/troupe" version)
file(REMOVE_RECURSE "${WORK_DIR}")
