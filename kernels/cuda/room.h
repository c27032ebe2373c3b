// What every CUDA family needs: the device, its stream, scratch memory, and the record in which
// kernels report what they cannot throw.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include "shoal/kernels/cuda/fault.cuh"
#include "shoal/runtime/device/device.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::kernels {

// Throws internal (out_of_memory, unavailable) naming the operation and CUDA's words.
void check_cuda(cudaError_t status, const char* operation);

class CudaRoom {
 public:
  CudaRoom(Device device, MemoryResource* memory);  // memory: null for a pool of its own
  ~CudaRoom();
  CudaRoom(const CudaRoom&) = delete;
  CudaRoom& operator=(const CudaRoom&) = delete;

  Device device() const { return device_; }
  int multiprocessors() const { return multiprocessors_; }
  int capability() const { return capability_; }  // 90: sm_90
  MemoryResource& memory() const { return *memory_; }
  Stream stream() const { return stream_.view(); }

  // The native stream of a call: its own, or stream() where it passes none. First throws what a
  // kernel has reported since the last call.
  cudaStream_t begin(Stream stream);

  // Between any two places, in the order of `native`. It and a wait are counted, as the device's
  // backend counts its own: no kernel waits, or copies pageable memory, behind a step's back.
  void copy(void* to, const void* from, std::size_t bytes, cudaStream_t native) const;
  void wait_for(cudaStream_t native) const;  // blocks

  // Scratch for one call, from memory(), tag workspace; freed in stream order when it goes.
  Buffer scratch(std::size_t bytes, Stream stream) const;

  // Pinned host memory that kernels write their first complaint into; see fault.cuh.
  FaultRecord* fault() const { return fault_; }
  void throw_fault();  // throws what is recorded, and clears it

 private:
  Device device_;
  OwnedStream stream_;
  std::unique_ptr<MemoryResource> upstream_, pool_;
  MemoryResource* memory_;
  FaultRecord* fault_ = nullptr;
  int multiprocessors_ = 0, capability_ = 0;
};

}  // namespace shoal::kernels
