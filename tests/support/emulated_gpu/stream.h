// The interface between device code and the emulated runtime.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"

namespace shoal::emulated_gpu {

// Queues `work` on a stream, as a kernel launch does. It runs on some thread when its turn comes,
// or at each launch of the graph if the stream is captured. So it must keep its arguments by value
// and may be called more than once; it need not be reentrant. While it runs, it can access device
// memory and may not call CUDA. A failure also becomes cudaGetLastError():
// cudaErrorInvalidResourceHandle if the stream is unknown or belongs to another device than the
// thread's.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

// Does the same with the launch's arguments as 8-byte words, any of which may be an address. A word
// that points to pageable host memory is an illegal address, reported with `what` ("kernel
// softmax"). The words also tell which pinned memory the work may use.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const std::string& what,
                    std::span<const std::uintptr_t> words);

// Blocks later work on the stream until `over()` returns true. A thread that waits for this polls,
// and does not block threads that run other streams. `over` may not call CUDA, and the stream may
// not be captured.
cudaError_t enqueue_wait(cudaStream_t stream, std::function<bool()> over);

// Bytes of dynamic shared memory that a launch of `kernel` may request on the thread's device: 48
// KiB, or what cudaFuncSetAttribute allowed.
int dynamic_shared_limit(const void* kernel);

// The devices on which this process has a primary context. A device gets one when it is current
// during a call that needs one, or by cudaSetDevice. forget_contexts is for tests.
std::vector<int> contexts();
void forget_contexts();

// Sets the calling thread's last error to `error`, unless that is success, and returns `error`.
cudaError_t failed(cudaError_t error);

// Sets a function that returns the calling thread's position in a kernel. Reports of invalid
// accesses end with it.
void tell_position(std::string (*position)());

// Prints "emulated GPU: LINE" and ends the process, because the behaviour of a real GPU is
// undefined here.
[[noreturn]] void fail(const std::string& line);

}  // namespace shoal::emulated_gpu
