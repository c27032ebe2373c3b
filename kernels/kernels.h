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
  // Instruction set and threads, for the run header: "avx512_bf16, oneDNN 2.6.3, 2 threads".
  virtual std::string describe() const = 0;
};

struct CpuKernelOptions {
  int threads = 0;                   // 0: available cores
  MemoryResource* memory = nullptr;  // scratch; null: plain host memory
};

// kernels/cpu: oneDNN, Highway, OpenMP. `memory` must outlive the result.
std::unique_ptr<Kernels> make_cpu_kernels(const CpuKernelOptions& options = {});
// kernels/reference: plain loops in double precision, for tests and for reading.
std::unique_ptr<Kernels> make_reference_kernels();

}  // namespace shoal::kernels
