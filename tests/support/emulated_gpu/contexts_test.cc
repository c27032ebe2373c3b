// Checks on which devices a process has a context: which emulated calls create one, and that Shoal
// creates one only on its own device, whichever thread calls. Also checks which drivers are
// accepted.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>

#include "rig.h"

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/backends.h"
#include "shoal/runtime/device/current_cuda_device.h"
#include "shoal/runtime/device/stream_gate.h"

namespace shoal::emulated_gpu {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Each test begins without a context. New threads have device 0 current.
class Contexts : public ::testing::Test {
 protected:
  void SetUp() override { forget_contexts(); }
  template <class F>
  static void in_a_thread(const F& body) {
    std::thread(body).join();
  }
};

TEST_F(Contexts, DeviceQueriesCreateNone) {
  int value = 0;
  cudaDeviceProp properties;
  CUDA(cudaGetDeviceCount(&value));
  CUDA(cudaGetDevice(&value));
  CUDA(cudaGetDeviceProperties(&properties, 1));
  CUDA(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 1));
  CUDA(cudaDriverGetVersion(&value));
  EXPECT_THAT(contexts(), IsEmpty());
}

TEST_F(Contexts, AreCreatedOnTheCallingThreadsDevice) {
  in_a_thread([] { CUDA(cudaSetDevice(1)); });
  EXPECT_THAT(contexts(), ElementsAre(1));
  in_a_thread([] { CUDA(cudaGetLastError()); });
  EXPECT_THAT(contexts(), ElementsAre(1));
  in_a_thread([] {
    cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, &attributes));
  });
  EXPECT_THAT(contexts(), ElementsAre(0, 1));
}

TEST(ContextsDeath, TooManyEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has read no settings
  EXPECT_DEATH(
      {
        setenv("SHOAL_EMULATED_GPU_CONTEXTS", "1", 1);
        CUDA(cudaSetDevice(1));
        CUDA(cudaSetDevice(0));
      },
      "cudaSetDevice makes a context on device 0: number 2 of this process, which may have 1");
}

TEST_F(Contexts, AGuardRestoresADeviceOnlyIfItHasAContext) {
  in_a_thread([] {
    int device = 0;
    {
      const CurrentCudaDevice current(Device::cuda(1));
    }
    CUDA(cudaGetDevice(&device));
    EXPECT_EQ(device, 1);
    CUDA(cudaSetDevice(0));
    {
      const CurrentCudaDevice current(Device::cuda(1));
    }
    CUDA(cudaGetDevice(&device));
    EXPECT_EQ(device, 0);
  });
  EXPECT_THROW(CurrentCudaDevice(Device::cuda(2)), Error);
}

// A rank of device 1 makes each call once in a thread that has not set a device, as threads of the
// engine or the caller may do.
TEST_F(Contexts, ARankHasOneOnlyOnItsOwnDevice) {
  DeviceBackend& backend = device_backend(DeviceType::cuda);
  const Device device = Device::cuda(1);
  Stream stream{device, nullptr};
  void *event = nullptr, *memory = nullptr, *pinned = nullptr, *graph = nullptr;
  std::unique_ptr<StreamGate> gate;
  const std::vector<std::function<void()>> steps = {
      [&] { backend.check_available(device); },
      [&] { stream.handle = backend.create_stream(device, StreamPriority::high); },
      [&] { event = backend.create_event(device, EventKind::timing); },
      [&] { pinned = backend.allocate_pinned(64); },
      [&] { memory = backend.allocate(device, 64, stream); },
      [&] { backend.copy(memory, pinned, 64, stream); },
      [&] { backend.fill(memory, 0, 64, stream); },
      [&] { gate = make_stream_gate(device); },
      [&] { gate->block_stream(stream); },
      [&] { backend.record(event, stream); },
      [&] { backend.wait(stream, event); },
      [&] { EXPECT_FALSE(backend.query(device, event)); },
      [&] { gate->open(); },
      [&] { backend.synchronize(device, event); },
      [&] { EXPECT_EQ(backend.elapsed_ms(device, event, event), 0); },
      [&] { backend.synchronize(stream); },
      [&] { backend.begin_capture(stream); },
      [&] { backend.abandon_capture(stream); },
      [&] { backend.begin_capture(stream); },
      [&] { EXPECT_TRUE(backend.is_captured(stream)); },
      [&] { backend.fill(memory, 0, 64, stream); },
      [&] { graph = backend.end_capture(stream); },
      [&] { backend.launch_graph(graph, stream); },
      [&] { backend.destroy_graph(graph); },
      [&] { EXPECT_GT(backend.memory_info(device).total, 0u); },
      [&] { backend.deallocate_pinned(pinned); },
      [&] { backend.deallocate(device, memory, stream); },
      [&] { backend.destroy_event(device, event); },
      [&] { backend.destroy_stream(stream); },
  };
  for (std::size_t step = 0; step < steps.size(); ++step) {
    in_a_thread(steps[step]);
    ASSERT_EQ(contexts(), step == 0 ? std::vector<int>() : std::vector<int>{1}) << "step " << step;
  }
}

TEST(DriverDeath, TooOldIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that has read no settings
  const auto asks_for_a_device = [](const char* driver) {
    setenv("SHOAL_EMULATED_GPU_DRIVER", driver, 1);
    try {
      device_backend(DeviceType::cuda).check_available(Device::cuda(0));
    } catch (const Error& error) {
      (void)std::fputs(error.what(), stderr);
      std::_Exit(1);
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(asks_for_a_device("12.0"), ::testing::ExitedWithCode(1),
              "the NVIDIA driver knows CUDA 12.0; Shoal needs 12.1 \\(driver 530\\) or later");
  EXPECT_EXIT(asks_for_a_device("12.1"), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace shoal::emulated_gpu
