# One library target per top folder. Sources are found by name, so that a new file needs no edit here.
include(GNUInstallDirs)

set(TROUPE_MODULES "" CACHE INTERNAL "All modules, lowest first")

# troupe_module(<folder> DEPENDS <targets…> [DEFINITIONS <definitions…>]): the library troupe_<folder>
# out of <folder>/**/*.cpp and *.proto; main programs (`*_main.cpp`) are left out. DEFINITIONS are those
# that the headers need, also in users' code.
function(troupe_module name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;DEFINITIONS" ${ARGN})
  set(dir "${PROJECT_SOURCE_DIR}/${name}")
  set(generated "${PROJECT_BINARY_DIR}/generated")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${dir}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "_main\\.cpp$")
  file(GLOB_RECURSE protos CONFIGURE_DEPENDS "${dir}/*.proto")
  set(target troupe_${name})
  if(sources OR protos)
    add_library(${target} STATIC ${sources})
    set(visibility PUBLIC)
    if(protos)
      file(MAKE_DIRECTORY "${generated}")
      target_link_libraries(${target} PUBLIC protobuf::libprotobuf)
      protobuf_generate(TARGET ${target} PROTOS ${protos} IMPORT_DIRS "${PROJECT_SOURCE_DIR}"
                        PROTOC_OUT_DIR "${generated}" OUT_VAR generated_sources)
      set_property(GLOBAL APPEND PROPERTY TROUPE_GENERATED_FILES ${generated_sources})
      list(FILTER generated_sources INCLUDE REGEX "\\.cc$")
      # Not our code: no warnings.
      set_source_files_properties(${generated_sources} PROPERTIES COMPILE_OPTIONS -w
                                  SKIP_PRECOMPILE_HEADERS ON)
    endif()
    if(TROUPE_PCH AND EXISTS "${PROJECT_SOURCE_DIR}/cmake/pch_${name}.hpp")
      target_precompile_headers(${target} PRIVATE "${PROJECT_SOURCE_DIR}/cmake/pch_${name}.hpp")
    endif()
  else()
    add_library(${target} INTERFACE)
    set(visibility INTERFACE)
  endif()
  add_library(troupe::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  # Users write <troupe/net/x.hpp>; the headers write "net/x.hpp" among themselves.
  target_include_directories(${target} ${visibility}
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/troupe>)
  target_include_directories(${target} SYSTEM ${visibility} $<BUILD_INTERFACE:${generated}>)
  target_compile_features(${target} ${visibility} cxx_std_20)
  target_compile_definitions(${target} ${visibility} ${ARG_DEFINITIONS})
  target_link_libraries(${target} ${visibility} ${ARG_DEPENDS} Threads::Threads)
  set(TROUPE_MODULES ${TROUPE_MODULES} ${name} CACHE INTERNAL "All modules, lowest first")
endfunction()
