// The shim's devices as emulated GPUs. Launches run in stream order and wait for the other ranks'
// launches, as NCCL's kernels do. Memory is counted at its caller, as NCCL's is.
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

// A stream of the current device that only the shim uses. It is not ordered with streams that use
// the memory.
Stream own_stream() {
  static std::mutex mutex;
  static auto& streams = *new std::map<int, OwnedStream>;  // outlive every thread
  int device = 0;
  (void)cudaGetDevice(&device);
  const std::lock_guard lock(mutex);
  return streams.try_emplace(device, Device::cuda(device)).first->second.view();
}

}  // namespace

// As a kernel on a GPU does, the launch blocks its stream and threads that wait for it, but not
// threads that query an event. The emulated GPU's graphs do not support such waits, so there it
// blocks the thread that runs the graph.
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
