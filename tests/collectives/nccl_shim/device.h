// The devices below the shim: host memory (host.cc) or emulated GPUs (emulated_gpu.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>

namespace shoal::test::nccl_shim {

// Called when the stream reaches the launch. It begins the launch and returns a function.
using BeginLaunch = std::function<std::function<bool()>()>;  // the stream waits until that is true
// Returns false if CUDA refused.
bool queue_launch(cudaStream_t stream, const BeginLaunch& begin);
// True if work queued on the stream is captured into a graph.
bool is_captured(cudaStream_t stream);
// Allocates on the current device. Null if memory is exhausted.
void* take_memory(std::size_t bytes);
void give_memory(void* pointer);  // at once, even if it is in use

// A rank's number of launches, and how many of them are done.
std::pair<std::int64_t, std::int64_t> launched_and_finished(int rank);
void record_memory_call(std::string text);

}  // namespace shoal::test::nccl_shim
