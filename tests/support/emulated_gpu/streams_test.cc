// Checks each strictness of the emulated GPU: lateness, poison and closed memory. Without them a
// mistake in host code would pass the tests.
#include <atomic>
#include <bit>
#include <cmath>
#include <thread>

#include "rig.h"
#include <sys/wait.h>
#include <unistd.h>

namespace shoal::emulated_gpu {
namespace {

// This program's machine has small devices, so that memory runs out.
[[maybe_unused]] const int kMachine = [] {
  setenv("SHOAL_EMULATED_GPUS", "2", 1);
  setenv("SHOAL_EMULATED_GPU_MEMORY", "16777216", 1);
  return 0;
}();

class Late : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
using LateDeath = Late;

// Runs before the process uses a device, because its children can have one only then.
void export_to_a_child() {
  int to_child[2], to_parent[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(to_parent), 0);
  const pid_t child = fork();
  if (child == 0) {
    cudaIpcMemHandle_t handle;
    void *opened = nullptr, *again = nullptr;
    bool good = read(to_child[0], &handle, sizeof handle) == static_cast<ssize_t>(sizeof handle);
    good = good &&
           cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    good =
        good && cudaIpcOpenMemHandle(&again, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
    good = good && again == opened && cudaIpcCloseMemHandle(again) == cudaSuccess;
    int seen = 0;
    good = good && copy(&seen, opened, sizeof seen, nullptr) == cudaSuccess && seen == 41;
    good = good && set(static_cast<int*>(opened), 42, nullptr) == cudaSuccess &&
           cudaStreamSynchronize(nullptr) == cudaSuccess;
    good = good && cudaIpcCloseMemHandle(opened) == cudaSuccess &&
           cudaIpcCloseMemHandle(opened) == cudaErrorInvalidValue;
    const char answer = good ? 'y' : 'n';
    _exit(write(to_parent[1], &answer, 1) == 1 ? 0 : 1);
  }
  {
    const OwnStream stream;  // allocates memory first, so that the export does not start at a page
    void* before = nullptr;
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, 0};
    cudaMemPool_t pool = nullptr;
    CUDA(cudaMemPoolCreate(&pool, &properties));
    CUDA(cudaMallocFromPoolAsync(&before, 10, pool, stream));
    const Ints shared(1000);
    CUDA(cudaFreeAsync(before, stream));
    CUDA(set(shared.data, 41, nullptr));
    CUDA(cudaStreamSynchronize(nullptr));
    cudaIpcMemHandle_t handle;
    CUDA(cudaIpcGetMemHandle(&handle, shared.data));
    EXPECT_CUDA(cudaErrorInvalidValue, cudaIpcGetMemHandle(&handle, shared.data + 1));
    ASSERT_EQ(write(to_child[1], &handle, sizeof handle), static_cast<ssize_t>(sizeof handle));
    char answer = 0;
    ASSERT_EQ(read(to_parent[0], &answer, 1), 1);
    EXPECT_EQ(answer, 'y');
    EXPECT_EQ(value_of(shared.data), 42) << "the other process wrote the value";
    void* own = nullptr;
    EXPECT_CUDA(cudaErrorDeviceUninitialized,
                cudaIpcOpenMemHandle(&own, handle, cudaIpcMemLazyEnablePeerAccess));
  }
  waitpid(child, nullptr, 0);
}

TEST_F(LateDeath, AnotherProcessOpensExportedMemory) {
  EXPECT_EXIT(
      {
        export_to_a_child();
        std::_Exit(HasFailure() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(Ipc, AForkedChildHasNoDevice) {
  CUDA(cudaDeviceSynchronize());
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    _exit(cudaGetDeviceCount(&count) == cudaErrorInitializationError ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(LateDeath, TheHostMayNotTouchDeviceMemory) {
  const Ints memory(16);
  EXPECT_DEATH(std::printf("%d", memory.data[3]),
               "the host touched device memory at .*: byte 12 of allocation .* of 64 bytes");
  CUDA(set(memory.data, 1, nullptr));
  CUDA(cudaDeviceSynchronize());
  EXPECT_DEATH(memory.data[0] = 1, "the host touched device memory");
}

TEST_F(LateDeath, DeviceWorkMayNotTouchUnallocatedMemory) {
  const Ints memory(16);
  EXPECT_DEATH(
      {
        (void)set(memory.data + (4 << 20), 1, nullptr);
        (void)cudaDeviceSynchronize();
      },
      "device work touched what is not allocated at .* behind the end of");
}

TEST_F(LateDeath, WritesBesideAnAllocationAreDetected) {
  const Ints memory(10);
  const auto write = [&](std::ptrdiff_t at) {
    (void)launch(nullptr, [to = memory.data + at] { poke(to, 1); }, {memory.data});
    (void)cudaDeviceSynchronize();
  };
  EXPECT_DEATH(write(12), "something wrote 8 bytes behind the end of allocation .* of 40 bytes");
  EXPECT_DEATH(write(-2), "something wrote 8 bytes before allocation .* of 40 bytes");
  EXPECT_DEATH(
      {
        (void)launch(nullptr, [to = memory.data + 10] { poke(to, 1); }, {memory.data});
        (void)cudaFree(memory.data);
      },
      "something wrote 0 bytes behind");
}

TEST_F(LateDeath, ArgumentsThatTheDeviceCannotReachAreReported) {
  const Ints pinned(1, Ints::pinned);
  auto plain = std::make_unique<int>(1);
  EXPECT_DEATH(
      (void)set(plain.get(), 1, nullptr),
      "kernel test: word 0 of its arguments, .*, points to host memory that is not pinned");
  CUDA(set(pinned.data, 1, nullptr));
  CUDA(cudaStreamSynchronize(nullptr));
  EXPECT_EQ(*pinned.data, 1);
  const Ints here(1);
  CUDA(cudaSetDevice(1));
  EXPECT_DEATH((void)set(here.data, 1, nullptr), "lies on device 0, to which it has no access");
  CUDA(cudaDeviceEnablePeerAccess(0, 0));
  EXPECT_CUDA(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(0, 0));
  CUDA(set(here.data, 5, nullptr));
  CUDA(cudaStreamSynchronize(nullptr));
  CUDA(cudaSetDevice(0));
  EXPECT_EQ(value_of(here.data), 5);
}

TEST_F(LateDeath, DeviceWorkMakesNoCalls) {
  EXPECT_DEATH(
      {
        (void)launch(nullptr, [] { (void)cudaDeviceSynchronize(); }, {});
        (void)cudaDeviceSynchronize();
      },
      "cudaDeviceSynchronize was called by device work");
}

TEST_F(LateDeath, PinnedMemoryInUseIsNotFreed) {
  const Ints memory(1);
  EXPECT_DEATH(
      {
        void* host = nullptr;
        (void)cudaHostAlloc(&host, 4, cudaHostAllocPortable);
        (void)copy(host, memory.data, 4, nullptr);
        (void)cudaFreeHost(host);
      },
      "cudaFreeHost of 4 bytes at .* that 1 queued operations still use");
}

TEST_F(LateDeath, EagerStreamsRunAtOnce) {
  for (const auto& [name, value] :
       {std::pair{"SHOAL_EMULATED_GPU_STREAMS", "eager"}, {"CUDA_LAUNCH_BLOCKING", "1"}})
    EXPECT_EXIT(
        {
          setenv(name, value, 1);
          bool ran = false;
          (void)launch(nullptr, [&] { ran = true; }, {});
          std::_Exit(ran ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "");
}

TEST_F(LateDeath, TheEnvironmentIsChecked) {
  EXPECT_DEATH(
      {
        setenv("SHOAL_EMULATED_GPUS", "many", 1);
        (void)cudaDeviceSynchronize();
      },
      "SHOAL_EMULATED_GPUS is 'many'; it may be 0 to 16");
  EXPECT_EXIT(
      {
        setenv("SHOAL_EMULATED_GPU_CAPABILITY", "7.0", 1);
        cudaDeviceProp is{};
        (void)cudaGetDeviceProperties(&is, 0);
        std::_Exit(is.major == 7 && is.minor == 0 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(LateDeath, BlocksHaveTheSharedMemoryOfTheirChip) {
  for (const auto& [capability, kilobytes] : {std::pair{"8.0", 163}, {"8.6", 99}, {"9.0", 227}})
    EXPECT_EXIT(
        {
          setenv("SHOAL_EMULATED_GPU_CAPABILITY", capability, 1);
          const auto allow = [](int bytes) {
            return cudaFuncSetAttribute(&kFresh, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        bytes);
          };
          int most = 0;
          (void)cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
          std::_Exit(most == kilobytes << 10 && allow(most) == cudaSuccess &&
                             allow(most + 1) == cudaErrorInvalidValue
                         ? 0
                         : 1);
        },
        ::testing::ExitedWithCode(0), "")
        << capability;
}

TEST_F(Late, WorkRunsWhenTheHostWaitsForIt) {
  const OwnStream stream;
  int ran = 0;
  CUDA(launch(stream, [&] { ran = 1; }, {}));
  EXPECT_EQ(ran, 0);
  const OwnEvent between;
  CUDA(cudaEventRecord(between, stream));
  CUDA(launch(stream, [&] { ran = 2; }, {}));
  CUDA(cudaEventSynchronize(between));
  EXPECT_EQ(ran, 1) << "work after the event ran";
  CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(ran, 2);
}

TEST_F(Late, AForgottenWaitReadsPoison) {
  const Ints memory(1);
  for (const bool waits : {false, true}) {
    const OwnStream writer, reader;
    const OwnEvent written;
    const Ints seen(1, Ints::pinned);
    CUDA(set(memory.data, 1, writer));
    CUDA(cudaEventRecord(written, writer));
    CUDA(set(memory.data, 2, writer));
    if (waits) {
      CUDA(cudaStreamWaitEvent(reader, written));
    }
    CUDA(copy(seen.data, memory.data, sizeof(int), reader));
    CUDA(cudaStreamSynchronize(reader));
    EXPECT_EQ(*seen.data, waits ? 1 : kFresh);
    CUDA(cudaStreamSynchronize(writer));
    EXPECT_EQ(value_of(memory.data), 2);
  }
}

// A wait for the device runs the latest work first, because an operation that lacks a wait mostly
// needs earlier ones.
TEST_F(Late, ADeviceWideWaitDoesNotRestoreTheOrder) {
  const Ints memory(1), seen(1);
  const OwnStream writer, reader;
  CUDA(set(memory.data, 1, writer));
  CUDA(copy(seen.data, memory.data, sizeof(int), reader));
  CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(value_of(seen.data), kFresh);
}

TEST_F(Late, AWaitForAnUnrecordedEventDoesNothing) {
  const OwnStream stream;
  const OwnEvent never;
  int ran = 0;
  CUDA(cudaStreamWaitEvent(stream, never));
  CUDA(cudaEventQuery(never));
  CUDA(launch(stream, [&] { ran = 1; }, {}));
  CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(ran, 1);
}

TEST_F(Late, AnEventIsNotReadyAtFirst) {
  const OwnStream stream;
  const OwnEvent event;
  int ran = 0;
  CUDA(launch(stream, [&] { ran = 1; }, {}));
  CUDA(cudaEventRecord(event, stream));
  EXPECT_CUDA(cudaErrorNotReady, cudaEventQuery(event));
  EXPECT_EQ(ran, 0);
  int asked = 1;
  while (cudaEventQuery(event) == cudaErrorNotReady) ASSERT_LT(++asked, 10);
  EXPECT_EQ(ran, 1);
  EXPECT_CUDA(cudaErrorNotReady, cudaGetLastError());
  CUDA(cudaGetLastError());
}

TEST_F(Late, EventsMeasureTime) {
  const OwnStream stream;
  const OwnEvent start(cudaEventDefault), stop(cudaEventDefault), order;
  CUDA(cudaEventRecord(start, stream));
  CUDA(launch(stream, [] { usleep(2000); }, {}));
  CUDA(cudaEventRecord(stop, stream));
  CUDA(cudaEventRecord(order, stream));
  float took = 0;
  EXPECT_CUDA(cudaErrorNotReady, cudaEventElapsedTime(&took, start, stop));
  CUDA(cudaEventSynchronize(stop));
  CUDA(cudaEventElapsedTime(&took, start, stop));
  EXPECT_GE(took, 2);
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&took, start, order));
}

TEST_F(Late, PinnedMemoryIsReadAndWrittenInTheStreamsTurn) {
  const OwnStream stream;
  const Ints memory(1), source(1, Ints::pinned), target(1, Ints::pinned);
  *source.data = 1;
  *target.data = 7;
  CUDA(copy(memory.data, source.data, sizeof(int), stream));
  *source.data = 2;  // too early
  CUDA(copy(target.data, memory.data, sizeof(int), stream));
  EXPECT_EQ(*target.data, kPending) << "reads before the wait must see poison";
  CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(*target.data, 2);
}

TEST_F(Late, PinnedMemoryThatQueuedWorkReadsIsNotPoisoned) {
  const OwnStream stream;
  const Ints memory(2), pinned(1, Ints::pinned);
  int *const from = pinned.data, *const to = memory.data;
  *pinned.data = 3;
  CUDA(set(memory.data + 1, 4, stream));
  CUDA(launch(stream, [=] { *to = *from; }, {to, from}));
  CUDA(copy(pinned.data, memory.data + 1, sizeof(int), stream));
  CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(*pinned.data, 4);
  EXPECT_EQ(value_of(memory.data), 3);
  // Work with unknown arguments may read any pinned memory.
  CUDA(enqueue(stream, [=] { *to = *from; }));
  CUDA(copy(pinned.data, memory.data, sizeof(int), stream));
  CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(*pinned.data, 4);
}

TEST_F(Late, PageableMemoryIsReadAndWrittenDuringTheCall) {
  const OwnStream stream;
  const Ints memory(1);
  auto value = std::make_unique<int>(1);
  CUDA(copy(memory.data, value.get(), sizeof(int), stream));
  *value = 2;
  CUDA(copy(value.get(), memory.data, sizeof(int), stream));
  EXPECT_EQ(*value, 1);
}

TEST_F(Late, CopiesAreChecked) {
  const OwnStream stream;
  const Ints memory(4);
  int host[4] = {};
  EXPECT_CUDA(cudaErrorInvalidValue, copy(memory.data + 1, host, 16, stream));
  EXPECT_CUDA(cudaErrorInvalidValue, copy(host, memory.data - 1, 4, stream));
  EXPECT_CUDA(cudaErrorInvalidValue, cudaMemsetAsync(host, 0, 16, stream));
  EXPECT_CUDA(cudaErrorInvalidMemcpyDirection,
              cudaMemcpyAsync(memory.data, host, 16, cudaMemcpyDeviceToDevice, stream));
  EXPECT_CUDA(cudaErrorInvalidMemcpyDirection,
              cudaMemcpyAsync(host, host, 16, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaMemcpyAsync(memory.data, host, 16, cudaMemcpyHostToDevice, stream));
}

TEST_F(Late, TheLegacyStreamAndBlockingStreamsWaitForEachOther) {
  const Ints memory(1);
  for (const unsigned flags : {cudaStreamNonBlocking, cudaStreamDefault}) {
    const OwnStream stream(flags);
    const bool blocking = flags == cudaStreamDefault;
    int value = 0;
    CUDA(cudaMemsetAsync(memory.data, 0, sizeof(int), stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(set(memory.data, 1, stream));
    CUDA(copy(&value, memory.data, sizeof(int), nullptr));
    EXPECT_EQ(value, blocking ? 1 : 0);
    CUDA(set(memory.data, 2, nullptr));
    CUDA(copy(&value, memory.data, sizeof(int), stream));
    EXPECT_EQ(value, blocking ? 2 : 1);
    CUDA(cudaDeviceSynchronize());
  }
}

TEST_F(Late, HandlesAndDevicesAreChecked) {
  const OwnStream stream;
  const OwnEvent event;
  auto* const nobody = std::bit_cast<cudaStream_t>(std::uintptr_t{4096});
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(nobody));
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, launch(nobody, [] {}, {}));
  EXPECT_CUDA(cudaErrorInvalidDevice, cudaSetDevice(2));
  CUDA(cudaSetDevice(1));
  EXPECT_CUDA(cudaErrorInvalidResourceHandle, launch(stream, [] {}, {}));
  {
    const OwnStream there;
    EXPECT_CUDA(cudaErrorInvalidResourceHandle, cudaEventRecord(event, there));
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaStreamWaitEvent(there, event));  // events of any device
  }
  CUDA(cudaSetDevice(0));
}

using WaitValue = int (*)(cudaStream_t, unsigned long long, std::uint32_t, unsigned);
WaitValue wait_value() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  CUDA(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000, 0, &found));
  EXPECT_EQ(found, cudaDriverEntryPointSuccess);
  return reinterpret_cast<WaitValue>(function);
}
unsigned long long address_of(const int* word) { return reinterpret_cast<std::uintptr_t>(word); }

// Queries never wait, so the thread that will set the word can query. Other streams run meanwhile.
TEST_F(Late, AStreamWaitsForAWordThatTheHostSets) {
  const OwnStream stream, behind, other;
  const OwnEvent event, last;
  const Ints word(1, Ints::pinned), plain(1);
  std::atomic_ref<int> value(*word.data);
  value = -3;
  int ran = 0;
  std::atomic<int> after{0};
  CUDA(launch(stream, [&] { ran = 1; }, {}));
  EXPECT_EQ(wait_value()(stream, address_of(word.data), static_cast<std::uint32_t>(-2), 0), 0);
  CUDA(launch(stream, [&] { after = 1; }, {}));
  CUDA(cudaEventRecord(event, stream));
  CUDA(cudaStreamWaitEvent(behind, event));
  CUDA(launch(behind, [&] { after = 2; }, {}));
  CUDA(cudaEventRecord(last, behind));
  for (int asked = 0; asked < 6; ++asked) {
    EXPECT_CUDA(cudaErrorNotReady, cudaEventQuery(event));
    EXPECT_CUDA(cudaErrorNotReady, cudaEventQuery(last));
  }
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(after, 0);
  std::thread waiting([&] { CUDA(cudaStreamSynchronize(behind)); });
  CUDA(cudaMemsetAsync(plain.data, 0, sizeof(int), other));
  CUDA(cudaStreamSynchronize(other));
  usleep(1000);
  EXPECT_EQ(after, 0);
  value = 1;  // larger values satisfy the wait too
  waiting.join();
  EXPECT_EQ(after, 2);
  EXPECT_NE(wait_value()(stream, address_of(plain.data), 0, 0), 0)
      << "the word must be in pinned memory";
}

TEST_F(LateDeath, AWordThatAStreamWaitsForIsNotFreed) {
  EXPECT_DEATH(
      {
        const OwnStream stream;
        void* word = nullptr;
        (void)cudaHostAlloc(&word, 4, cudaHostAllocPortable);
        *static_cast<int*>(word) = 0;
        (void)wait_value()(stream, address_of(static_cast<int*>(word)), 1, 0);
        (void)cudaFreeHost(word);
      },
      "1 queued operations still use");
}

TEST_F(LateDeath, ADriverMayHaveNoStreamValues) {
  EXPECT_EXIT(
      {
        setenv("SHOAL_EMULATED_GPU_STREAM_VALUES", "0", 1);
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found{};
        (void)cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000, 0, &found);
        std::_Exit(found == cudaDriverEntryPointSymbolNotFound && !function ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// Each thread's stream depends in turn on its left neighbour's. A waiting thread runs the streams
// it needs, although other threads run them too.
TEST_F(Late, ThreadsRunEachOthersStreams) {
  constexpr int kThreads = 4, kTurns = 200;
  const Ints counters(kThreads);
  std::vector<std::unique_ptr<OwnStream>> streams;
  std::vector<std::unique_ptr<OwnEvent>> events;
  std::mutex mutex;  // makes recording an event and waiting for it one step
  for (int i = 0; i < kThreads; ++i) {
    streams.push_back(std::make_unique<OwnStream>());
    events.push_back(std::make_unique<OwnEvent>());
    CUDA(cudaMemsetAsync(counters.data + i, 0, sizeof(int), *streams.back()));
  }
  CUDA(cudaDeviceSynchronize());
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      const auto own = static_cast<std::size_t>(i),
                 left = static_cast<std::size_t>((i + 1) % kThreads);
      int* const counter = counters.data + i;
      for (int turn = 0; turn < kTurns; ++turn) {
        {
          const std::scoped_lock lock(mutex);
          CUDA(cudaStreamWaitEvent(*streams[own], *events[left]));
          CUDA(launch(*streams[own], [=] { ++*counter; }, {counter}));
          CUDA(cudaEventRecord(*events[own], *streams[own]));
        }
        if (turn % 7 == i) {
          CUDA(cudaStreamSynchronize(*streams[own]));
        }
      }
      CUDA(cudaStreamSynchronize(*streams[own]));
    });
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kThreads; ++i) EXPECT_EQ(value_of(counters.data + i), kTurns);
}

}  // namespace
}  // namespace shoal::emulated_gpu
