# Compiler flags, sanitizers, compiler cache and linker. Everything optional is used where present.
# All flags here belong to this build only; none of them reaches the exported targets.
option(TROUPE_BUILD_TESTS "Build the tests" ON)
option(TROUPE_BUILD_BENCH "Build the benchmarks" ON)
option(TROUPE_WERROR "Treat warnings as errors" OFF)
option(TROUPE_FUZZ "Build the fuzz targets with libFuzzer (needs Clang)" OFF)
option(TROUPE_PCH "Use precompiled headers" ON)
option(TROUPE_HEADER_CHECK "With the tests, compile every header on its own" ON)
option(TROUPE_COVERAGE "Count executed lines (gcov)" OFF)
set(TROUPE_SANITIZE "" CACHE STRING "address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # base_dir and nohashdir let several build folders share objects; the sloppiness is what
  # precompiled headers need.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${TROUPE_CCACHE})
endif()

include(CheckLinkerFlag)
foreach(_linker mold lld)
  find_program(TROUPE_LINKER_${_linker} NAMES ${_linker} ld.${_linker})
  if(TROUPE_LINKER_${_linker})
    check_linker_flag(CXX -fuse-ld=${_linker} TROUPE_LINKER_${_linker}_WORKS)
    if(TROUPE_LINKER_${_linker}_WORKS)
      add_link_options(-fuse-ld=${_linker})
      break()
    endif()
  endif()
endforeach()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 sees overflows in `"text" + std::string` (GCC bug 105651).
  add_compile_options(-Wno-restrict -Wno-stringop-overflow -Wno-array-bounds)
endif()
if(TROUPE_WERROR)
  add_compile_options(-Werror)
endif()
if(TROUPE_SANITIZE)
  add_compile_options(-fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${TROUPE_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Instrumented standard headers (std::regex and others) look uninitialised to GCC 12, and it
    # warns that TSan does not model fences, of which Boost.Asio has some.
    add_compile_options(-Wno-maybe-uninitialized -Wno-tsan)
  endif()
  if(TROUPE_SANITIZE MATCHES undefined)
    # CAF's init_fun_factory.hpp binds a reference to a null tuple in `spawn(lambda)` without arguments;
    # ASan still sees real accesses through null.
    add_compile_options(-fno-sanitize-recover=undefined -fno-sanitize=null)
  endif()
endif()
if(TROUPE_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TROUPE_FUZZ needs Clang: -DCMAKE_CXX_COMPILER=clang++")
  endif()
  # The libraries are instrumented, and each fuzz target links libFuzzer itself.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(TROUPE_COVERAGE)
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()

# Boost 1.74's coroutine header lacks an include with GCC 12, and Clang 14 cannot parse it; Troupe uses
# callbacks only, see BOOST_ASIO_DISABLE_CO_AWAIT where troupe_net is defined.
add_compile_definitions(BOOST_ASIO_NO_DEPRECATED)
