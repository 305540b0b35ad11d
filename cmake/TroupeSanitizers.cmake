# How sanitizers behave while the tests run: any finding fails the test, and suppressions (only for
# Debian's libraries, which are not instrumented) come from tests/sanitizers/.
set(TROUPE_TEST_ENVIRONMENT "")
set(_suppressions "${PROJECT_SOURCE_DIR}/tests/sanitizers")
if(TROUPE_SANITIZE MATCHES "address")
  list(APPEND TROUPE_TEST_ENVIRONMENT
       "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_init_order=1:exitcode=99"
       "LSAN_OPTIONS=suppressions=${_suppressions}/lsan.supp:print_suppressions=0"
       "UBSAN_OPTIONS=print_stacktrace=1")
elseif(TROUPE_SANITIZE MATCHES "thread")
  list(APPEND TROUPE_TEST_ENVIRONMENT
       "TSAN_OPTIONS=suppressions=${_suppressions}/tsan.supp:halt_on_error=0:second_deadlock_stack=1:exitcode=99")
endif()
