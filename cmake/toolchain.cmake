# Compiler, linker and sanitizer settings of every target.
find_program(CCACHE ccache)
if(CCACHE)
  # One cache for all checkouts: paths inside the source tree count relative to it.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=true ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
add_compile_options(-Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers -fno-omit-frame-pointer)

if(PARKWAY_SANITIZER STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -O1)
  add_link_options(-fsanitize=address,undefined)
  if(PARKWAY_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link) # coverage, for the libraries too
  endif()
elseif(PARKWAY_SANITIZER STREQUAL "thread")
  add_compile_options(-fsanitize=thread -O1)
  add_link_options(-fsanitize=thread)
elseif(NOT PARKWAY_SANITIZER STREQUAL "")
  message(FATAL_ERROR "PARKWAY_SANITIZER=${PARKWAY_SANITIZER}: it takes address, thread or nothing")
endif()
