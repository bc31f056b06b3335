# Libraries of Debian 12; `scripts/setup.sh` installs them.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(Protobuf REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(absl REQUIRED)
find_package(gRPC CONFIG QUIET)
find_package(GTest REQUIRED)
pkg_check_modules(GRPCPP REQUIRED IMPORTED_TARGET grpc++)
pkg_check_modules(GLOG REQUIRED IMPORTED_TARGET libglog)
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

# The Python that engines and compilers embed: the virtual environment's.
set(PARKWAY_PYTHON "${CMAKE_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "python >= 3.12 with jaxlib, for embedding")
set(Python3_EXECUTABLE ${PARKWAY_PYTHON})
find_package(Python3 3.12 COMPONENTS Interpreter Development.Embed)
if(NOT Python3_Development.Embed_FOUND)
  message(FATAL_ERROR "PARKWAY_PYTHON=${PARKWAY_PYTHON} can't be embedded: it takes a Python >= 3.12 with a shared "
                      "libpython and headers. `make build` finds one and makes .venv; scripts/find_python.sh says what to install.")
endif()

set(ABSL_LIBS absl::status absl::statusor absl::strings absl::str_format absl::flat_hash_map absl::flat_hash_set
    absl::inlined_vector absl::span absl::any_invocable absl::function_ref absl::synchronization absl::time absl::base absl::cord
    absl::random_random absl::hash)
