// What device code and the emulated runtime say to each other.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cuda_runtime_api.h"

namespace shoal::emulated_gpu {

// Queues `work` on a stream, as a kernel's launch does: it runs on some thread when its turn comes,
// or, while the stream is captured, whenever its graph does, so it keeps its arguments by value and
// may be called more than once. Device memory can be touched while it runs and no CUDA call can be
// made; it need not be reentrant. A failure is also what cudaGetLastError() then says:
// cudaErrorInvalidResourceHandle where the stream is unknown or of another device than the
// thread's.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work);

// The same with the launch's arguments as 8-byte words, of which any may be an address. A word that
// points to pageable host memory is an illegal address and named by `what` ("kernel softmax"); with
// the words it is known which pinned memory the work may use, and which it cannot.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> work, const std::string& what,
                    std::span<const std::uintptr_t> words);

// What comes after on the stream does not run before `over()` says so; who waits for that asks
// again and again, and holds up nobody who runs other streams. `over` makes no CUDA call. Not while
// the stream is captured.
cudaError_t enqueue_wait(cudaStream_t stream, std::function<bool()> over);

// Bytes of dynamic shared memory that a launch of `kernel` may ask for on the thread's device:
// 48 KiB, or what cudaFuncSetAttribute allowed.
int dynamic_shared_limit(const void* kernel);

// The devices on which this process has a primary context: those that were current when a call was
// made that needs one, and what cudaSetDevice made current. forget_contexts: for tests.
std::vector<int> contexts();
void forget_contexts();

// The calling thread's last error becomes `error` (unless it is none), which is returned.
cudaError_t failed(cudaError_t error);

// What says, within kernels, where the calling thread is; the report of a wrong access ends with
// it.
void tell_position(std::string (*position)());

// Prints "emulated GPU: LINE" and ends the process: what a real GPU would do is not known.
[[noreturn]] void fail(const std::string& line);

}  // namespace shoal::emulated_gpu
