# The version and a string that names the build (`git describe` when configuring, else the version
# alone), as generated/troupe_version.hpp.
set(TROUPE_BUILD_STRING "${PROJECT_VERSION}")
find_package(Git QUIET)
if(GIT_FOUND AND EXISTS "${PROJECT_SOURCE_DIR}/.git")
  execute_process(
    COMMAND "${GIT_EXECUTABLE}" describe --always --dirty --tags --abbrev=12
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    OUTPUT_VARIABLE _troupe_describe OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE _troupe_result ERROR_QUIET)
  if(_troupe_result EQUAL 0 AND _troupe_describe MATCHES "^[A-Za-z0-9._-]+$")
    string(APPEND TROUPE_BUILD_STRING "+${_troupe_describe}")
  endif()
endif()
configure_file("${PROJECT_SOURCE_DIR}/cmake/troupe_version.hpp.in"
               "${PROJECT_BINARY_DIR}/generated/troupe_version.hpp" @ONLY)
