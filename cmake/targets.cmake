# parkway_library(name SRCS a.cc ... [DEPS x ...]): a static library; its tests are declared by parkway_test.
function(parkway_library name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SRCS})
  target_link_libraries(${name} PUBLIC ${A_DEPS} ${ABSL_LIBS} PkgConfig::GLOG Threads::Threads)
endfunction()

# All unit tests and nothing else, for the sanitizer builds.
add_custom_target(unit_tests)

# parkway_test(name SRCS a_test.cc ... [DEPS x ...]): a unit test, of label `unit`: no process, no network beyond loopback.
function(parkway_test name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${A_SRCS})
  target_link_libraries(${name} PRIVATE ${A_DEPS} GTest::gmock GTest::gtest_main ${ABSL_LIBS} PkgConfig::GLOG Threads::Threads)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 60)
  if(PARKWAY_SANITIZER STREQUAL "thread")
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp")
  endif()
  add_dependencies(unit_tests ${name})
endfunction()

# All fuzzers, for `make fuzz`.
add_custom_target(fuzzers)

# parkway_fuzzer(name SRCS a_fuzz.cc ... [DEPS x ...]): a libFuzzer target, in builds with -DPARKWAY_FUZZ=ON alone.
function(parkway_fuzzer name)
  cmake_parse_arguments(A "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} EXCLUDE_FROM_ALL ${A_SRCS})
  target_link_libraries(${name} PRIVATE ${A_DEPS} ${ABSL_LIBS} PkgConfig::GLOG Threads::Threads)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers ${name})
endfunction()
