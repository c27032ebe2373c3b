// Streams, events and memory that clean up after themselves, for the emulated GPU's tests.
#pragma once

#include <cstring>
#include <vector>

#include "sanitizer.h"
#include "stream.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal::emulated_gpu {

#define EXPECT_CUDA(expected, call) \
  EXPECT_STREQ(cudaGetErrorName(call), cudaGetErrorName(expected)) << #call
#define CUDA(call) EXPECT_CUDA(cudaSuccess, call)

struct OwnStream {
  explicit OwnStream(unsigned flags = cudaStreamNonBlocking) {
    CUDA(cudaStreamCreateWithPriority(&handle, flags, 0));
  }
  ~OwnStream() { (void)cudaStreamDestroy(handle); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  operator cudaStream_t() const { return handle; }  // NOLINT: replaces a handle
  cudaStream_t handle = nullptr;
};

struct OwnEvent {
  explicit OwnEvent(unsigned flags = cudaEventDisableTiming) {
    CUDA(cudaEventCreateWithFlags(&handle, flags));
  }
  ~OwnEvent() { (void)cudaEventDestroy(handle); }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  operator cudaEvent_t() const { return handle; }  // NOLINT: replaces a handle
  cudaEvent_t handle = nullptr;
};

// Integers in device memory (cudaMalloc) or in pinned host memory.
class Ints {
 public:
  enum Where { device, pinned };
  explicit Ints(std::size_t count, Where where = device) : where_(where) {
    void* made = nullptr;
    if (where == device)
      CUDA(cudaMalloc(&made, count * sizeof(int)));
    else
      CUDA(cudaHostAlloc(&made, count * sizeof(int), cudaHostAllocPortable));
    data = static_cast<int*>(made);
  }
  ~Ints() { (void)(where_ == device ? cudaFree(data) : cudaFreeHost(data)); }
  Ints(const Ints&) = delete;
  Ints& operator=(const Ints&) = delete;
  int* data = nullptr;

 private:
  Where where_;
};

// Queues `work`, which may access `reached`, as a kernel launch does.
template <class F>
cudaError_t launch(cudaStream_t stream, const F& work, std::initializer_list<const void*> reached) {
  std::vector<std::uintptr_t> words;
  for (const void* each : reached) words.push_back(reinterpret_cast<std::uintptr_t>(each));
  return enqueue(stream, work, "kernel test", words);
}

inline cudaError_t set(int* at, int value, cudaStream_t stream) {
  return launch(stream, [=] { *at = value; }, {at});
}
// Reads and writes that no sanitizer checks.
SHOAL_MAY_TOUCH_ANYTHING inline int peek(const int* at) { return *at; }
SHOAL_MAY_TOUCH_ANYTHING inline void poke(int* at, int value) { *at = value; }
inline cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}
// The current value in device memory, read on a separate stream without ordering.
inline int value_of(const int* at) {
  const OwnStream stream;
  int value = 0;
  CUDA(copy(&value, at, sizeof value, stream));
  return value;
}

constexpr int kFresh = 0x7ff77ff7, kFreed = 0x7ffb7ffb, kPending = 0x7ffd7ffd;

}  // namespace shoal::emulated_gpu
