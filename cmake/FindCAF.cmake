# Finds the C++ Actor Framework 0.17 (Debian ships neither a CMake config nor a pkg-config file).
#
#   find_package(CAF 0.17 REQUIRED COMPONENTS core [io])
#
# Targets: CAF::core, CAF::io. Variables: CAF_FOUND, CAF_VERSION.
find_path(CAF_INCLUDE_DIR caf/config.hpp)
mark_as_advanced(CAF_INCLUDE_DIR)

if(CAF_INCLUDE_DIR)
  file(STRINGS "${CAF_INCLUDE_DIR}/caf/config.hpp" _caf_line REGEX "#define CAF_VERSION [0-9]+")
  if(_caf_line MATCHES "CAF_VERSION ([0-9]+)")
    math(EXPR _caf_major "${CMAKE_MATCH_1} / 10000")
    math(EXPR _caf_minor "(${CMAKE_MATCH_1} / 100) % 100")
    math(EXPR _caf_patch "${CMAKE_MATCH_1} % 100")
    set(CAF_VERSION "${_caf_major}.${_caf_minor}.${_caf_patch}")
  endif()
endif()

if(NOT CAF_FIND_COMPONENTS)
  set(CAF_FIND_COMPONENTS core)
endif()
foreach(_caf_component IN LISTS CAF_FIND_COMPONENTS)
  find_library(CAF_${_caf_component}_LIBRARY NAMES caf_${_caf_component})
  mark_as_advanced(CAF_${_caf_component}_LIBRARY)
  if(CAF_${_caf_component}_LIBRARY)
    set(CAF_${_caf_component}_FOUND TRUE)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF REQUIRED_VARS CAF_INCLUDE_DIR VERSION_VAR CAF_VERSION
                                  HANDLE_COMPONENTS)

if(CAF_FOUND)
  find_package(Threads REQUIRED)
  foreach(_caf_component IN LISTS CAF_FIND_COMPONENTS)
    if(NOT TARGET CAF::${_caf_component})
      add_library(CAF::${_caf_component} UNKNOWN IMPORTED)
      set_target_properties(CAF::${_caf_component} PROPERTIES
        IMPORTED_LOCATION "${CAF_${_caf_component}_LIBRARY}"
        INTERFACE_INCLUDE_DIRECTORIES "${CAF_INCLUDE_DIR}"
        INTERFACE_LINK_LIBRARIES Threads::Threads)
    endif()
  endforeach()
  if(TARGET CAF::io AND TARGET CAF::core)
    set_property(TARGET CAF::io APPEND PROPERTY INTERFACE_LINK_LIBRARIES CAF::core)
  endif()
endif()
