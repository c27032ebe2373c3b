// Checks that AddressSanitizer checks the accesses of device code (sanitizer.h). Compiled only
// under AddressSanitizer.
#include "support/emulated_gpu/sanitizer.h"

#include <thread>
#include <vector>

#include "support/emulated_gpu/device_code.h"
#include "support/emulated_gpu/rig.h"

#include "shoal/kernels/cuda/instructions.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"

namespace shoal::emulated_gpu {
namespace {

using kernels::copy_async;
using kernels::dynamic_shared;
using kernels::launch_kernel;

// y[i] = x[i], one thread for each i.
void copy_floats(const float* x, float* y, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i];
}
constexpr unsigned kCount = 13;  // not a multiple of any allocation granularity

class Sanitized : public ::testing::Test {
 protected:
  Sanitized() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static float* floats(std::size_t count) {
    void* made = nullptr;
    CUDA(cudaMalloc(&made, count * sizeof(float)));
    return static_cast<float*>(made);
  }
  static void run(const float* x, float* y, unsigned count) {
    CUDA(launch_kernel(&copy_floats, 2, 8, 0, nullptr, x, y, count));
    CUDA(cudaDeviceSynchronize());
  }
};
using SanitizedDeath = Sanitized;

TEST_F(SanitizedDeath, AReadBehindAnAllocationIsReported) {
  float *const x = floats(kCount), *const y = floats(kCount + 1);
  run(x, y, kCount);
  EXPECT_DEATH(
      run(x, y, kCount + 1),
      "use-after-poison(.|\n)*READ of size 4(.|\n)*copy_floats(.|\n)*device work touched "
      "what is not allocated at .*: on device 0, in no allocation: 0 bytes behind the end "
      "of .* of 52 bytes, in kernel launched at .*sanitizer_test.cc:[0-9]+ .*, block \\(1, "
      "0, 0\\), thread \\(5, 0, 0\\)");
  EXPECT_DEATH(run(x - 1, y, 1), "READ of size 4");
  EXPECT_DEATH(run(y, x, kCount + 1), "WRITE of size 4(.|\n)*copy_floats");
  CUDA(cudaFree(x));
  CUDA(cudaFree(y));
}

TEST_F(SanitizedDeath, MemoryEndsAtTheExactByte) {
  for (const std::size_t bytes : {1u, 7u, 52u, 4096u}) {
    void* made = nullptr;
    CUDA(cudaMalloc(&made, bytes));
    const auto read = [x = static_cast<const volatile char*>(made)](std::size_t at) {
      (void)enqueue(nullptr, [=] { (void)x[at]; });
      (void)cudaDeviceSynchronize();
    };
    read(bytes - 1);
    EXPECT_DEATH(read(bytes), "use-after-poison(.|\n)*READ of size 1");
    CUDA(cudaFree(made));
  }
}

TEST_F(SanitizedDeath, FreedMemoryIsNotAccessible) {
  float *const x = floats(kCount), *const y = floats(kCount);
  CUDA(cudaFree(x));
  EXPECT_DEATH(run(x, y, 1), "use-after-poison(.|\n)*READ of size 4(.|\n)*copy_floats");
  CUDA(cudaFree(y));
}

// Memory freed in stream order stays accessible to work queued earlier, but not to later work.
TEST_F(SanitizedDeath, MemoryFreedInAStreamLivesUntilItsTurn) {
  const OwnStream stream;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t pool = nullptr;
  CUDA(cudaMemPoolCreate(&pool, &properties));
  const auto use = [&](bool after) {
    void* made = nullptr;
    CUDA(cudaMallocFromPoolAsync(&made, kCount * sizeof(float), pool, stream));
    auto* const x = static_cast<float*>(made);
    const auto write = [&] {
      CUDA(launch_kernel(&copy_floats, 2, 8, 0, stream, static_cast<const float*>(x), x, kCount));
    };
    write();
    CUDA(cudaFreeAsync(made, stream));
    if (after) write();
    CUDA(cudaStreamSynchronize(stream));
  };
  use(false);
  EXPECT_DEATH(use(true), "use-after-poison(.|\n)*READ of size 4(.|\n)*copy_floats");
  use(false);
}

TEST_F(SanitizedDeath, PinnedMemoryEndsAtItsRequestedSize) {
  for (const std::size_t count : {kCount, 1024u}) {
    const Ints memory(count, Ints::pinned);
    memory.data[count - 1] = 1;
    EXPECT_DEATH(memory.data[count] = 1, "use-after-poison(.|\n)*WRITE of size 4");
    EXPECT_DEATH(
        {
          (void)launch(nullptr, [&] { memory.data[count] = 1; }, {memory.data});
          (void)cudaDeviceSynchronize();
        },
        "use-after-poison(.|\n)*WRITE of size 4");
  }
}

// Hides from UBSan, which would end the process first, that the address belongs to an array.
template <typename T>
volatile T* somewhere(T* at) {
  asm volatile("" : "+r"(at));
  return at;
}

// Kernels defined outside the macro, which would put all of their code on one line.
void beyond_dynamic() { dynamic_shared<volatile float>()[threadIdx.x] = 1; }
void copies_beyond_dynamic() {
  alignas(16) static const float from[4] = {};
  copy_async(dynamic_shared<float>(), from, true);
}
void beyond_static() {
  __shared__ float room[2][31];
  volatile float* const at = somewhere(&room[0][0]);
  at[2 * threadIdx.x] = 1;
  if (threadIdx.x == 30) at[2 * threadIdx.x + 1] = 1;
}
template <typename T>
void beyond_static_of_a_template() {
  __shared__ T room[5];
  somewhere(&room[0])[threadIdx.x] = 1;
}
void beyond_local() {
  int of_thread[3] = {1, 2, 3};
  somewhere(&of_thread[0])[threadIdx.x] = 4;
}

TEST_F(SanitizedDeath, SharedMemoryEndsAtItsRequestedSize) {
  for (const unsigned count : {kCount, 16u}) {
    run_grid(2, count, 4 * count, beyond_dynamic);
    EXPECT_DEATH(run_grid(2, count + 1, 4 * count, beyond_dynamic), "WRITE of size 4|SEGV");
  }
  run_grid(1, 1, 16, copies_beyond_dynamic);
  EXPECT_DEATH(run_grid(1, 1, 12, copies_beyond_dynamic), "WRITE of size 16");
  run_grid(1, 31, 0, beyond_static);
  EXPECT_DEATH(run_grid(1, 32, 0, beyond_static),
               "global-buffer-overflow(.|\n)*WRITE of size 4(.|\n)*beyond_static(.|\n)*'room'");
  run_grid(1, 5, 0, beyond_static_of_a_template<double>);
  EXPECT_DEATH(run_grid(1, 6, 0, beyond_static_of_a_template<double>),
               "global-buffer-overflow(.|\n)*WRITE of size 8");
  run_grid(1, 3, 0, beyond_local);
  EXPECT_DEATH(run_grid(1, 4, 0, beyond_local),
               "stack-buffer-overflow(.|\n)*WRITE of size 4(.|\n)*beyond_local");
}

// Threads meet while exceptions and deep frames are active, and the sanitizer must not confuse one
// fiber's stack with another's. At a throw, AddressSanitizer marks variables that left their scope
// only if it knows the current stack. The words that are passed by value occupy the frames of such
// variables.
struct Words {
  unsigned of[2 << 10];
};
__attribute__((noinline)) void throw_from_below(unsigned round) {
  {
    Words gone;
    somewhere(&gone.of[0])[threadIdx.x] = round;
  }
  throw round;
}
__attribute__((noinline)) unsigned sum_of(Words words) {
  unsigned sum = 0;
  for (const unsigned word : words.of) sum += word;
  return sum;
}

void throws_and_meets() {
  for (unsigned round = 0; round < 3; ++round) {
    Words words{};
    try {
      words.of[threadIdx.x] = round;
      if ((threadIdx.x + round) % 3 == 0) throw_from_below(round);
    } catch (const unsigned thrown) {
      EXPECT_EQ(thrown, round);
    }
    __syncthreads();
    EXPECT_EQ(__shfl_xor_sync(0xffffffffu, sum_of(words), 1), round);
  }
}

TEST_F(Sanitized, FibersAreDistinguished) {
  const auto run_all = [] {
    for (const unsigned threads : {64u, 1024u, 32u}) run_grid(2, threads, 64, throws_and_meets);
  };
  run_all();
  // Several host threads, which end afterwards.
  for (int round = 0; round < 2; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back(run_all);
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace shoal::emulated_gpu
