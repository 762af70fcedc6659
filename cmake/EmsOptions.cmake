# Language, warnings, sanitizers and launchers: everything that holds for every target.
option(EMS_BUILD_PROGRAMS "Build daemons, tools and bindings, not the C++ SDK alone" ${PROJECT_IS_TOP_LEVEL})
option(EMS_BUILD_TESTS "Build the tests" ${EMS_BUILD_PROGRAMS})
option(EMS_BATCHES "Compile several sources at a time (cmake/batches.py): quicker from scratch, slower after one edit" OFF)
set(EMS_BATCH_SIZE 8 CACHE STRING "Sources a batch at most")
option(EMS_FUZZ "Build the libFuzzer targets (needs clang)" OFF)
set(EMS_SANITIZE "" CACHE STRING "Sanitizers to build with, e.g. address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O1 -g1 -fno-omit-frame-pointer")

find_program(EMS_CCACHE ccache)
if(EMS_CCACHE)
  # Paths below the checkout do not count, so that a fresh clone elsewhere finds what another one compiled.
  set(launcher "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${EMS_CCACHE}")
  set(CMAKE_C_COMPILER_LAUNCHER "${launcher}")
  set(CMAKE_CXX_COMPILER_LAUNCHER "${launcher}")
endif()
find_program(EMS_MOLD mold)
if(EMS_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(EMS_SANITIZE)
  add_compile_options(-fsanitize=${EMS_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${EMS_SANITIZE})
  # gcc's middle end warns about code that only the instrumentation makes.
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  if(EMS_SANITIZE MATCHES "thread")
    # Standalone fences are not modelled by TSan; the code that uses them says so and pairs them with atomics.
    add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
endif()

# Test programs: what is measured or instrumented is the product; they compile in two thirds (release) or half (ASan) of the time.
# At -O1 g++ takes members of a std::optional for uninitialized.
set(EMS_TEST_OPTIMIZATION $<$<CONFIG:Release>:-O1> $<$<CONFIG:Release>:-Wno-maybe-uninitialized>)
if(EMS_SANITIZE MATCHES "address")
  set(EMS_TEST_OPTIMIZATION -O0)
endif()
if(EMS_FUZZ)
  # Of the libraries, too: libFuzzer keeps an input that reaches new code in them.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Applied by ems_library and friends; generated code is left alone.
set(EMS_WARNINGS -Wall -Wextra -Wshadow -Wconversion -Werror)
