# ems_library(NAME mp_server SRCS a.cc b.cc DEPS ems::view PRIVATE_DEPS RocksDB::rocksdb)
# One folder is one library, reached as ems::NAME; include paths start at the root of the tree.
# LINKABLE: what a shared library of ours may be made of, here and in ems_proto.
function(ems_library)
  cmake_parse_arguments(ARG "LINKABLE" "NAME" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(ems_${ARG_NAME} STATIC ${ARG_SRCS})
  add_library(ems::${ARG_NAME} ALIAS ems_${ARG_NAME})
  target_compile_features(ems_${ARG_NAME} PUBLIC cxx_std_20)
  target_include_directories(ems_${ARG_NAME} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_compile_options(ems_${ARG_NAME} PRIVATE ${EMS_WARNINGS})
  target_link_libraries(ems_${ARG_NAME} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  if(ARG_LINKABLE)
    ems_make_linkable(ems_${ARG_NAME})
  endif()
  ems_batch(ems_${ARG_NAME})
endfunction()

# ems_batch(target): where EMS_BATCHES is on, the target's sources are compiled several at a time (cmake/batches.py): eight
# sources parse their headers once. At the end of the folder, when all sources and their properties are known; sources
# with flags or definitions of their own stay alone.
function(ems_batch target)
  if(EMS_BATCHES)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL ems_batch_now [[${target}]])")
  endif()
endfunction()

function(ems_batch_now target)
  get_target_property(sources ${target} SOURCES)
  set(together "")
  foreach(source IN LISTS sources)
    get_source_file_property(options "${source}" COMPILE_OPTIONS)
    get_source_file_property(definitions "${source}" COMPILE_DEFINITIONS)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}" NORMALIZE OUTPUT_VARIABLE path)
    cmake_path(IS_PREFIX PROJECT_BINARY_DIR "${path}" is_generated)
    if(NOT options AND NOT definitions AND NOT is_generated AND path MATCHES "\\.cc$")
      list(REMOVE_ITEM sources "${source}")
      file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}" "${path}")
      list(APPEND together "${path}")
    endif()
  endforeach()
  list(LENGTH together count)
  if(count LESS 2)
    return()
  endif()
  set(out "${CMAKE_CURRENT_BINARY_DIR}/batches/${target}")
  execute_process(
    COMMAND "${EMS_PYTHON}" -B "${PROJECT_SOURCE_DIR}/cmake/batches.py" "${PROJECT_SOURCE_DIR}" "${out}" ${EMS_BATCH_SIZE}
            ${together}
    OUTPUT_VARIABLE batches OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" batches "${batches}")
  set_property(TARGET ${target} PROPERTY SOURCES ${sources} ${batches})
  # g++ takes only what is written in the file that it is given for private to it.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()

# Its names stay its own: nothing of it is exported or replaced by the process that loads it.
function(ems_make_linkable target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden
                                             VISIBILITY_INLINES_HIDDEN ON)
endfunction()

# ems_executable(NAME mp-server SRCS main.cc DEPS ems::mp_server)
function(ems_executable)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_compile_options(${ARG_NAME} PRIVATE ${EMS_WARNINGS})
  target_compile_definitions(${ARG_NAME} PRIVATE EMS_VERSION="${PROJECT_VERSION}")
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS})
  ems_batch(${ARG_NAME})
endfunction()

# ems_proto(NAME controller_proto SRCS controller.proto DEPS … [GRPC])
# Generated headers are included by their path from the root: "proto/controller.pb.h".
function(ems_proto)
  cmake_parse_arguments(ARG "GRPC;LINKABLE" "NAME" "SRCS;DEPS" ${ARGN})
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  set(out "${PROJECT_BINARY_DIR}/gen")
  set(generated "")
  foreach(src IN LISTS ARG_SRCS)
    get_filename_component(stem "${src}" NAME_WE)
    set(base "${out}/${folder}/${stem}")
    set(outputs "${base}.pb.cc" "${base}.pb.h")
    set(flags --cpp_out=${out})
    if(ARG_GRPC)
      list(APPEND outputs "${base}.grpc.pb.cc" "${base}.grpc.pb.h")
      list(APPEND flags --grpc_out=${out} --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>)
    endif()
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${out}
      COMMAND protobuf::protoc -I ${PROJECT_SOURCE_DIR} ${flags} ${CMAKE_CURRENT_SOURCE_DIR}/${src}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${src}
      VERBATIM)
    list(APPEND generated ${outputs})
  endforeach()
  add_library(ems_${ARG_NAME} STATIC ${generated})
  add_library(ems::${ARG_NAME} ALIAS ems_${ARG_NAME})
  target_include_directories(ems_${ARG_NAME} SYSTEM PUBLIC "${out}")
  target_link_libraries(ems_${ARG_NAME} PUBLIC protobuf::libprotobuf ${ARG_DEPS})
  if(ARG_GRPC)
    target_link_libraries(ems_${ARG_NAME} PUBLIC gRPC::grpc++)
  endif()
  if(ARG_LINKABLE)
    ems_make_linkable(ems_${ARG_NAME})
  endif()
endfunction()

# ems_test(slab_pool_test.cc DEPS ems::mp_server LABELS unit), in tests/mp_server/CMakeLists.txt
# The CTest name is the path below tests/ without its ending; TIMEOUT is a backstop against hangs, never a measure. NEEDS:
# programs that the test starts. RUN_SERIAL: nothing else runs meanwhile; write the reason beside it.
# All tests of a folder are one program, tests/support/test_main.cc, and those with threads of ours in them another, which
# ThreadSanitizer runs; each source of it is one CTest test in a process of its own.
function(ems_test src)
  cmake_parse_arguments(ARG "RUN_SERIAL" "TIMEOUT;COST" "DEPS;LABELS;NEEDS" ${ARGN})
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  string(REGEX REPLACE "^tests/(.*)\\.cc$" "\\1" name "${folder}/${src}")
  string(REPLACE "/" "_" program "${folder}")
  if("concurrent" IN_LIST ARG_LABELS)
    string(APPEND program "_concurrent")
  endif()
  if(NOT TARGET ${program})
    add_executable(${program})
    target_compile_options(${program} PRIVATE ${EMS_WARNINGS} ${EMS_TEST_OPTIMIZATION})
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests/bin")
    target_link_libraries(${program} PRIVATE ems::test_support ems::test_main)
    ems_batch(${program})
  endif()
  target_sources(${program} PRIVATE ${src})
  target_link_libraries(${program} PRIVATE ${ARG_DEPS})
  if(ARG_NEEDS)
    add_dependencies(${program} ${ARG_NEEDS})
  endif()
  add_test(NAME ${name} COMMAND ${program} --source=${folder}/${src})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} RUN_SERIAL ${ARG_RUN_SERIAL}
    ENVIRONMENT "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp halt_on_error=1 second_deadlock_stack=1;UBSAN_OPTIONS=print_stacktrace=1;ASAN_OPTIONS=detect_stack_use_after_return=1")
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
endfunction()

# ems_fuzzer(frame_fuzzer.cc DEPS …): a libFuzzer target; its corpus is the folder of the same name.
function(ems_fuzzer src)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  get_filename_component(target "${src}" NAME_WE)
  add_executable(${target} ${src})
  target_compile_options(${target} PRIVATE ${EMS_WARNINGS} -fsanitize=fuzzer)
  target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${target} PRIVATE ${ARG_DEPS})
endfunction()
