# ems_library(NAME mp_server SRCS a.cc b.cc DEPS ems::view PRIVATE_DEPS RocksDB::rocksdb)
# One folder is one library, reached as ems::NAME; include paths start at the root of the tree.
# LINKABLE: what a shared library of ours may be made of, here and in ems_proto.
function(ems_library)
  cmake_parse_arguments(ARG "LINKABLE" "NAME" "SRCS;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(ems_${ARG_NAME} STATIC ${ARG_SRCS})
  add_library(ems::${ARG_NAME} ALIAS ems_${ARG_NAME})
  target_include_directories(ems_${ARG_NAME} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_compile_options(ems_${ARG_NAME} PRIVATE ${EMS_WARNINGS})
  target_link_libraries(ems_${ARG_NAME} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
  if(ARG_LINKABLE)
    ems_make_linkable(ems_${ARG_NAME})
  endif()
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
  target_include_directories(${ARG_NAME} SYSTEM PRIVATE "${EMS_CLI11_INCLUDE}")
  target_compile_definitions(${ARG_NAME} PRIVATE EMS_VERSION="${PROJECT_VERSION}")
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS})
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
# The CTest name is the path below tests/ without its ending; TIMEOUT is a backstop against hangs, never a measure.
function(ems_test src)
  cmake_parse_arguments(ARG "" "TIMEOUT" "DEPS;LABELS" ${ARGN})
  file(RELATIVE_PATH name "${PROJECT_SOURCE_DIR}/tests" "${CMAKE_CURRENT_SOURCE_DIR}/${src}")
  string(REGEX REPLACE "\\.cc$" "" name "${name}")
  string(REPLACE "/" "_" target "${name}")
  add_executable(${target} ${src})
  target_compile_options(${target} PRIVATE ${EMS_WARNINGS})
  target_compile_definitions(${target} PRIVATE EMS_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
                                               EMS_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests/bin")
  target_link_libraries(${target} PRIVATE ${ARG_DEPS} ems::test_support GTest::gmock GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${target})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    ENVIRONMENT "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp halt_on_error=1 second_deadlock_stack=1;UBSAN_OPTIONS=print_stacktrace=1;ASAN_OPTIONS=detect_stack_use_after_return=1")
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
