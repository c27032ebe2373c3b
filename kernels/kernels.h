// All kernel families of one device. `nn` and everything above use only this interface.
//
// An implementation owns its caches (primitives, packed weights) and scratch memory; there are no
// globals. A table may be used by one thread at a time; each rank has one, used by its main thread.
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
  // Stream of calls that pass Stream{}. Other work on the same data should be queued here too.
  virtual Stream stream() const { return {}; }
  // Instruction set and threads, for the run header: "avx512_bf16, oneDNN 2.6.3, 2 threads".
  virtual std::string describe() const = 0;
  // Throws unavailable, with an alternative, if a model should not compute in `dtype` on this
  // device (bf16 on GPUs without bf16 instructions).
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
  MemoryResource* memory = nullptr;  // scratch on that device; null: an own pool
  // Directory that keeps the matmul algorithms chosen by timing. Empty: nothing is timed, and every
  // process uses the same algorithms.
  std::string cache_directory;
};
// kernels/cuda: cuBLASLt, cuDNN and own kernels, queued on a stream of their own. Calls return at
// once; an error found on the device (an id outside its table) is thrown by a later call. Throws
// unavailable if Shoal was built without CUDA, the device does not exist, or the binary has no code
// for it.
std::unique_ptr<Kernels> make_cuda_kernels(const CudaKernelOptions& options = {});
// Architectures the CUDA kernels were compiled for, in CMAKE_CUDA_ARCHITECTURES' notation
// ("80-real 90a-real"); empty: built without CUDA.
std::string cuda_architectures();

// kernels/reference: plain loops in double precision, for tests and for reading.
std::unique_ptr<Kernels> make_reference_kernels();

}  // namespace shoal::kernels
