// The shim's devices as emulated GPUs: launches come in their streams' turns, which wait for the
// other ranks' as NCCL's kernels do. What memory it takes is counted by who calls it, as NCCL's is.
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "device.h"
#include "support/emulated_gpu/stream.h"

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal::test::nccl_shim {
namespace {

// Of the current device, and the shim's alone: it is in no order with those that use the memory.
Stream own_stream() {
  static std::mutex mutex;
  static auto& streams = *new std::map<int, OwnedStream>;  // outlive every thread
  int device = 0;
  (void)cudaGetDevice(&device);
  const std::lock_guard lock(mutex);
  return streams.try_emplace(device, Device::cuda(device)).first->second.view();
}

}  // namespace

// As a kernel's on a GPU it holds up its stream and who waits for that, and not who looks at an
// event. Graphs of the emulated GPU know no such waits: there it holds up the thread that runs it.
bool queue_launch(cudaStream_t stream, const BeginLaunch& begin) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  if (stream != nullptr) (void)cudaStreamIsCapturing(stream, &capturing);
  const auto held = [begin] {
    const auto ended = begin();
    for (int turn = 0; !ended(); ++turn) {
      if (turn == 600'000) emulated_gpu::fail("NCCL: a kernel waited 60 s for others'");
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  };
  if (capturing != cudaStreamCaptureStatusNone)
    return emulated_gpu::enqueue(stream, held) == cudaSuccess;
  const auto ended = std::make_shared<std::function<bool()>>();
  return emulated_gpu::enqueue(stream, [begin, ended] { *ended = begin(); }) == cudaSuccess &&
         emulated_gpu::enqueue_wait(stream, [ended] { return (*ended)(); }) == cudaSuccess;
}

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

void* take_memory(std::size_t bytes) {
  const Stream stream = own_stream();
  DeviceBackend& backend = device_backend(DeviceType::cuda);
  try {
    void* const pointer = backend.allocate(stream.device, bytes, stream);
    backend.synchronize(stream);
    backend.count({.synchronizations = -1, .allocations = -1});
    return pointer;
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::out_of_memory) throw;
    return nullptr;
  }
}

void give_memory(void* pointer) {
  const Stream stream = own_stream();
  DeviceBackend& backend = device_backend(DeviceType::cuda);
  backend.deallocate(stream.device, pointer, stream);
  backend.synchronize(stream);
  backend.count({.synchronizations = -1, .deallocations = -1});
}

}  // namespace shoal::test::nccl_shim
