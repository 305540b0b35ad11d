# `cmake --install`: headers below include/troupe/<module>/, libraries, the program and the package
# config, so that another project can say find_package(troupe) and link troupe::<module>.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(_troupe_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/troupe")
set(_troupe_include_dir "${CMAKE_INSTALL_INCLUDEDIR}/troupe")

foreach(_module IN LISTS TROUPE_MODULES)
  install(TARGETS troupe_${_module} EXPORT troupe_targets
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  if(IS_DIRECTORY "${PROJECT_SOURCE_DIR}/${_module}")
    install(DIRECTORY "${PROJECT_SOURCE_DIR}/${_module}" DESTINATION "${_troupe_include_dir}"
            FILES_MATCHING PATTERN "*.hpp" PATTERN "*.proto")
  endif()
endforeach()
install(DIRECTORY "${PROJECT_BINARY_DIR}/generated/" DESTINATION "${_troupe_include_dir}"
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
install(TARGETS troupe RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")

install(EXPORT troupe_targets NAMESPACE troupe:: FILE troupeTargets.cmake
        DESTINATION "${_troupe_config_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/troupeConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/cmake/troupeConfig.cmake"
                              INSTALL_DESTINATION "${_troupe_config_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/troupeConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cmake/troupeConfig.cmake"
              "${PROJECT_BINARY_DIR}/cmake/troupeConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindCAF.cmake"
        DESTINATION "${_troupe_config_dir}")
