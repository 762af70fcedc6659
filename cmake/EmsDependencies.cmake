# Debian packages only; deploy/install_deps.sh names them.
find_package(Threads REQUIRED)
# Debian's own interpreter: python3-dev has its headers, and another one first in PATH has not its packages.
set(EMS_PYTHON /usr/bin/python3 CACHE FILEPATH "The Python of the build, of the tests, and that the package ems is for")
# Where EMS is part of another project, that one links what these find, too.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED COMPONENTS core)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
if(EMS_BUILD_PROGRAMS)
  find_package(yaml-cpp REQUIRED)
  find_package(RocksDB CONFIG REQUIRED)
  find_package(ZLIB REQUIRED)
  pkg_check_modules(LIBURING REQUIRED IMPORTED_TARGET liburing)
  pkg_check_modules(MSGPACK REQUIRED msgpack)
  pkg_check_modules(ZEROMQ REQUIRED IMPORTED_TARGET libzmq)
  find_path(EMS_CLI11_INCLUDE CLI/CLI.hpp REQUIRED)
  # A peer in ems-bench, headers alone.
  find_path(EMS_EIGEN_INCLUDE Eigen/Core PATH_SUFFIXES eigen3 REQUIRED)
endif()

find_path(EMS_ASIO_INCLUDE asio.hpp REQUIRED)
add_library(ems_asio INTERFACE)
target_include_directories(ems_asio SYSTEM INTERFACE "${EMS_ASIO_INCLUDE}")
target_compile_definitions(ems_asio INTERFACE ASIO_NO_DEPRECATED)
# Asio asks what libstdc++ has (threads, aligned memory) before it includes any of it: whether a standard header came
# first must not differ between files, or their parts of Asio do not fit together.
target_compile_options(ems_asio INTERFACE "SHELL:-include cstddef")
# g++ spells concepts' "awaitable" support itself; clang 14 has to be told.
target_compile_definitions(ems_asio INTERFACE
  $<$<CXX_COMPILER_ID:Clang>:ASIO_HAS_CO_AWAIT=1>
  $<$<CXX_COMPILER_ID:Clang>:ASIO_HAS_STD_COROUTINE=1>)
# Nor can clang 14 assemble coroutines with this one of UBSan's checks.
target_compile_options(ems_asio INTERFACE $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
target_link_libraries(ems_asio INTERFACE Threads::Threads)

if(EMS_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
