// Resources shared by all CUDA families: the device, its stream, scratch memory, and the record in
// which kernels report errors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include "shoal/kernels/cuda/fault.cuh"
#include "shoal/runtime/device/device.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::kernels {

// Throws internal (out_of_memory, unavailable) with the operation and CUDA's message.
void check_cuda(cudaError_t status, const char* operation);

class CudaResources {
 public:
  CudaResources(Device device, MemoryResource* memory);  // memory: null for an own pool
  ~CudaResources();
  CudaResources(const CudaResources&) = delete;
  CudaResources& operator=(const CudaResources&) = delete;

  Device device() const { return device_; }
  int multiprocessors() const { return multiprocessors_; }
  int capability() const { return capability_; }  // 90: sm_90
  MemoryResource& memory() const { return *memory_; }
  Stream stream() const { return stream_.view(); }

  // Native stream of a call: `stream`, or stream() if the call passes none. First throws any error
  // that a kernel has reported since the last call.
  cudaStream_t begin(Stream stream);

  // Copies between any two kinds of memory, in the order of `native`. Copies and waits are counted
  // in the device backend's statistics, so that tests notice kernels that wait or copy pageable
  // memory.
  void copy(void* to, const void* from, std::size_t bytes, cudaStream_t native) const;
  void wait_for(cudaStream_t native) const;  // blocks

  // Scratch for one call, from memory() with tag workspace; freed in stream order on destruction.
  Buffer scratch(std::size_t bytes, Stream stream) const;

  // Pinned host memory in which kernels record their first error; see fault.cuh.
  FaultRecord* fault() const { return fault_; }
  void throw_fault();  // throws and clears the recorded error

 private:
  Device device_;
  OwnedStream stream_;
  std::unique_ptr<MemoryResource> upstream_, pool_;
  MemoryResource* memory_;
  FaultRecord* fault_ = nullptr;
  int multiprocessors_ = 0, capability_ = 0;
};

}  // namespace shoal::kernels
