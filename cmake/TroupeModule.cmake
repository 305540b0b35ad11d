# One library target per top folder. Sources are found by name, so that a new file needs no edit here.

# troupe_module(<folder> DEPENDS <targets…>): the library troupe_<folder> out of <folder>/**/*.cpp and
# *.proto; main programs (`*_main.cpp`) are left out.
function(troupe_module name)
  cmake_parse_arguments(ARG "" "" "DEPENDS" ${ARGN})
  set(dir "${CMAKE_CURRENT_SOURCE_DIR}/${name}")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${dir}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "_main\\.cpp$")
  file(GLOB_RECURSE protos CONFIGURE_DEPENDS "${dir}/*.proto")
  set(target troupe_${name})
  if(sources OR protos)
    add_library(${target} STATIC ${sources})
    set(visibility PUBLIC)
    if(protos)
      target_link_libraries(${target} PUBLIC protobuf::libprotobuf)
      protobuf_generate(TARGET ${target} PROTOS ${protos}
                        IMPORT_DIRS "${CMAKE_CURRENT_SOURCE_DIR}"
                        PROTOC_OUT_DIR "${CMAKE_CURRENT_BINARY_DIR}/generated")
      file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/generated")
    endif()
    if(TROUPE_PCH AND EXISTS "${CMAKE_CURRENT_SOURCE_DIR}/cmake/pch_${name}.hpp")
      target_precompile_headers(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/cmake/pch_${name}.hpp")
    endif()
  else()
    add_library(${target} INTERFACE)
    set(visibility INTERFACE)
  endif()
  add_library(troupe::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(${target} ${visibility}
    $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}>
    $<BUILD_INTERFACE:${CMAKE_CURRENT_BINARY_DIR}/generated>
    $<INSTALL_INTERFACE:include>
    $<INSTALL_INTERFACE:include/troupe>)
  target_link_libraries(${target} ${visibility} ${ARG_DEPENDS} Threads::Threads)
endfunction()
