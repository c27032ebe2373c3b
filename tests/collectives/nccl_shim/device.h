// What the shim asks of the devices that it runs over: host memory (host.cc), or emulated GPUs
// (emulated_gpu.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>

namespace shoal::test::nccl_shim {

// In the stream's turn: begins, once in each turn, and says what is to hold the stream up.
using BeginLaunch = std::function<std::function<bool()>()>;  // ... until it is true
// false: CUDA refused.
bool queue_launch(cudaStream_t stream, const BeginLaunch& begin);
// Whether what is queued there is noted for a graph.
bool is_captured(cudaStream_t stream);
// Of the current device; null: there is none left.
void* take_memory(std::size_t bytes);
void give_memory(void* pointer);  // at once, whoever still uses it

// The shim's books: what a rank has launched, and how much of it is done.
std::pair<std::int64_t, std::int64_t> launched_and_finished(int rank);
void record_memory_call(std::string text);

}  // namespace shoal::test::nccl_shim
