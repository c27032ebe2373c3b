// All families of one device, behind one table. `nn` and everything above see only this.
//
// An implementation owns its caches (primitives, packed weights) and scratch memory; there are no
// globals. One table serves one thread at a time: a rank has one, its main thread's.
#pragma once

#include <memory>
#include <string>

#include "shoal/kernels/attention.h"
#include "shoal/kernels/elementwise.h"
#include "shoal/kernels/embedding.h"
#include "shoal/kernels/loss.h"
#include "shoal/kernels/matmul.h"
#include "shoal/kernels/norm.h"
#include "shoal/kernels/optimizer.h"
#include "shoal/kernels/reduction.h"

namespace shoal::kernels {

class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual MatmulKernels& matmul() = 0;
  virtual ElementwiseKernels& elementwise() = 0;
  virtual NormKernels& norm() = 0;
  virtual AttentionKernels& attention() = 0;
  virtual LossKernels& loss() = 0;
  virtual EmbeddingKernels& embedding() = 0;
  virtual OptimizerKernels& optimizer() = 0;
  virtual ReductionKernels& reduction() = 0;
  virtual Device device() const = 0;
  // What a call that passes no stream (Stream{}) is queued on, and everyone else should use.
  virtual Stream stream() const { return {}; }
  // Instruction set and threads, for the run header: "avx512_bf16, oneDNN 2.6.3, 2 threads".
  virtual std::string describe() const = 0;
  // Throws unavailable, with what to use instead, where a model should not compute in `dtype` here:
  // bf16 on GPUs that have no instructions for it.
  virtual void check_computes(DType /*dtype*/) const {}
};

struct CpuKernelOptions {
  int threads = 0;                   // 0: available cores
  MemoryResource* memory = nullptr;  // scratch; null: plain host memory
};

// kernels/cpu: oneDNN, Highway, OpenMP. `memory` must outlive the result.
std::unique_ptr<Kernels> make_cpu_kernels(const CpuKernelOptions& options = {});
struct CudaKernelOptions {
  Device device = Device::cuda(0);
  MemoryResource* memory = nullptr;  // scratch, of that device; null: its own pool
  // Where the algorithms chosen for products by timing are kept. Empty: nothing is timed, and every
  // process takes the same ones.
  std::string cache_directory;
};
// kernels/cuda: cuBLASLt, cuDNN and own kernels, queued on one stream of their own. Calls return at
// once; what the device finds wrong (an id outside its table) is thrown by a later call. Throws
// unavailable where Shoal was built without CUDA, there is no such device, or the binary has no
// code for it.
std::unique_ptr<Kernels> make_cuda_kernels(const CudaKernelOptions& options = {});
// What CUDA's kernels were compiled for, "80-real 90a-real" as CMAKE_CUDA_ARCHITECTURES has it;
// empty: they were not.
std::string cuda_architectures();

// kernels/reference: plain loops in double precision, for tests and for reading.
std::unique_ptr<Kernels> make_reference_kernels();

}  // namespace shoal::kernels
