// cuBLASLt's descriptors for one key, and the algorithms it proposes.
#pragma once

#include <memory>
#include <vector>

#include <cublasLt.h>

#include "shoal/kernels/cuda/gemm_choices.h"
#include "shoal/kernels/cuda/gemm_key.h"
#include "shoal/kernels/cuda/resources.h"

namespace shoal::kernels {

// Throws internal (out_of_memory) with the operation and the library's message.
void check_cublas(cublasStatus_t status, const char* operation);

// Calls cuBLASLt's destroy function for an object in a unique_ptr.
template <auto destroy>
struct CublasDeleter {
  template <class T>
  void operator()(T* object) const {
    (void)destroy(object);
  }
};
using CublasHandle = std::unique_ptr<cublasLtContext, CublasDeleter<cublasLtDestroy>>;

class GemmPlan {
 public:
  // `args` must match the key; only the alignment of its addresses matters.
  GemmPlan(cublasLtHandle_t handle, const GemmKey& key, const GemmArgs& args);

  // Number of algorithms. The library's preferred one comes first.
  std::size_t candidates() const { return candidates_.size(); }
  GemmChoice choice(std::size_t index) const;  // the algorithm of that candidate
  // Puts the chosen algorithm first, before the other candidates. False if the library does not
  // accept it.
  bool prefer(const GemmChoice& choice);

  // Queues the product on `native`, the native stream of `stream`, with scratch from `resources`.
  // False, with nothing queued, if there is no algorithm or the library refuses all of them.
  bool run(CudaResources& resources, const GemmArgs& args, Stream stream, cudaStream_t native);
  // The same, with only the candidate at `index`.
  bool run_candidate(std::size_t index, CudaResources& resources, const GemmArgs& args,
                     Stream stream, cudaStream_t native);

  // False if timing found the fused form not worthwhile; see GemmChoice::fused.
  bool fused = true;

 private:
  struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
    std::size_t workspace;
  };
  using Description =
      std::unique_ptr<cublasLtMatmulDescOpaque_t, CublasDeleter<cublasLtMatmulDescDestroy>>;
  using Layout =
      std::unique_ptr<cublasLtMatrixLayoutOpaque_t, CublasDeleter<cublasLtMatrixLayoutDestroy>>;

  void set_pointers(const GemmArgs& args);
  void propose();
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value);
  static Layout make_layout(cudaDataType_t type, const GemmLayout& layout, std::int64_t groups);

  cublasLtHandle_t handle_;
  GemmKey key_;
  Description description_;
  Layout a_, b_, c_;
  std::vector<Candidate> candidates_;
};

}  // namespace shoal::kernels
