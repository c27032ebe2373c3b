# Compiles the device code of kernels/cuda with g++. The headers in include/ come before the
# libraries' own and replace those that C++ cannot express.
find_package(Boost 1.74 REQUIRED COMPONENTS context)
get_property(kernel_sources GLOBAL PROPERTY SHOAL_CUDA_KERNEL_SOURCES)
set(device_sources ${kernel_sources})
list(FILTER device_sources INCLUDE REGEX "\\.cu$")
# A GPU refuses misaligned accesses, while x86 mostly allows them.
set(alignment -fsanitize=alignment -fno-sanitize-recover=alignment)
set(optimisation -O2)
if(SHOAL_SANITIZE STREQUAL "address")
  set(optimisation -O1)  # above -O1 g++ takes minutes for a source
endif()
# g++ does not know nvcc's unroll pragmas, and nvcc allows memory to be read as another type.
set_source_files_properties(${device_sources} PROPERTIES LANGUAGE CXX
  COMPILE_OPTIONS "-include;support/emulated_gpu/device_code.h;${optimisation};-Wno-unknown-pragmas;-Wno-maybe-uninitialized;-fno-strict-aliasing;${alignment}")
add_library(shoal_emulated_gpu_kernels OBJECT architectures.cc block.cc matrices.cc ${kernel_sources})
target_include_directories(shoal_emulated_gpu_kernels BEFORE
  PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/tests)
target_link_libraries(shoal_emulated_gpu_kernels
  PRIVATE shoal_settings shoal_kernels_cuda shoal_runtime_device shoal_runtime_memory shoal_runtime_io
    nlohmann_json::nlohmann_json fmt::fmt Boost::context)

target_sources(shoal_emulated_gpu INTERFACE $<TARGET_OBJECTS:shoal_emulated_gpu_kernels>)
target_link_options(shoal_emulated_gpu INTERFACE -fsanitize=alignment)
target_link_libraries(shoal_emulated_gpu
  INTERFACE shoal_kernels_cuda shoal_runtime_memory shoal_runtime_io nlohmann_json::nlohmann_json Boost::context)

# Timeout of a test in seconds: ten times what a test may take on a slow core. Under
# AddressSanitizer the longest test took 41 s on two busy cores.
set(SHOAL_EMULATED_GPU_TIMEOUT 200 CACHE INTERNAL "")
if(SHOAL_SANITIZE STREQUAL "address")
  set(SHOAL_EMULATED_GPU_TIMEOUT 400 CACHE INTERNAL "")
endif()

# shoal_emulated_gpu_test(TEST [IN_PLACE] [FULL] [FILTER gtest-filter]): runs the tests of the
# program TEST again on the emulated GPU, as a program TEST_on_emulated_gpu made from the same
# objects. IN_PLACE: the tests read kernels' results without waiting, so no work may be late. FULL:
# a single ctest test, which only ./dev test --full runs.
set_property(GLOBAL PROPERTY SHOAL_ON_CUDA ${CMAKE_CURRENT_SOURCE_DIR})
function(shoal_emulated_gpu_test test)
  cmake_parse_arguments(ARG "IN_PLACE;FULL" "FILTER" "" ${ARGN})
  set(name ${test}_on_emulated_gpu)
  get_property(folder GLOBAL PROPERTY SHOAL_ON_CUDA)
  get_target_property(libraries ${test} LINK_LIBRARIES)
  add_executable(${name} $<TARGET_OBJECTS:${test}> ${folder}/on_cuda.cc
    $<$<BOOL:${ARG_IN_PLACE}>:${folder}/in_place.cc>)
  target_link_libraries(${name} PRIVATE shoal_emulated_gpu ${libraries})
  if(ARG_FULL)
    add_test(NAME ${name}
      COMMAND sh -c "test -n \"$SHOAL_TEST_FULL\" || exit 77; exec $<TARGET_FILE:${name}>")
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 3600 ENVIRONMENT GOMP_SPINCOUNT=10000)
    return()
  endif()
  gtest_discover_tests(${name} TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST TEST_FILTER "${ARG_FILTER}"
    PROPERTIES TIMEOUT ${SHOAL_EMULATED_GPU_TIMEOUT} ENVIRONMENT GOMP_SPINCOUNT=10000)
endfunction()

# Tests the emulation of device code with small kernels.
shoal_test(emulated_device_code_test SOURCES bias_gradient_test.cc device_code_test.cc launches_test.cc
    $<$<STREQUAL:${SHOAL_SANITIZE},address>:sanitizer_test.cc>
  DEPS shoal_emulated_gpu shoal_nn_capture shoal_nn_models shoal_nn_optim nlohmann_json::nlohmann_json)
target_compile_options(emulated_device_code_test PRIVATE ${alignment})
target_include_directories(emulated_device_code_test BEFORE
  PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/tests)

# Tests that need a cuDNN.
shoal_test(emulated_cudnn_plans_test SOURCES cudnn_plans_test.cc
  DEPS shoal_emulated_gpu shoal_kernels_cuda shoal_runtime_memory shoal_runtime_tensor)
target_include_directories(emulated_cudnn_plans_test BEFORE
  PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/tests)
