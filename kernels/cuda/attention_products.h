// Attention as products of whole score matrices with a softmax in between (Vaswani et al.,
// "Attention Is All You Need", 2017). For GPUs before sm_80, where only cuBLASLt reaches the tensor
// cores, and for heads that exceed the fused kernels.
// Scores are f32; probabilities have the inputs' dtype. Pieces of a call run in sequence, so that
// scores never exceed a workspace. Dropout and masks are the same as in the fused kernels; results
// are bit-identical from run to run.
#pragma once

#include "shoal/kernels/attention.h"
#include "shoal/kernels/cuda/attention_pieces.h"
#include "shoal/kernels/cuda/attention_softmax.cuh"
#include "shoal/kernels/cuda/gemm.h"
#include "shoal/kernels/cuda/resources.h"

namespace shoal::kernels {

inline HeadsView view_of(MutableHeadsView view) {
  return {view.data, view.batch_stride, view.row_stride};
}

// Attention by products adds to this gradient piece by piece.
inline void clear_relative_bias_gradient(const AttentionShape& shape, cudaStream_t stream) {
  const View& bias = shape.relative_bias_gradient;
  if (!bias.defined()) return;
  check_cuda(cudaMemsetAsync(bias.data, 0,
                             static_cast<std::size_t>(bias.shape.count()) * sizeof(float), stream),
             "clearing the gradient of attention's relative bias");
}

class AttentionProducts {
 public:
  // Both must outlive it. `workspace`: bytes; 0: unlimited.
  AttentionProducts(CudaResources& resources, CudaGemm& gemm, std::int64_t workspace)
      : resources_(resources), gemm_(gemm), workspace_(workspace) {}

  // As AttentionKernels, with one key head per head. log_sum_exp may be null. sequences: as for
  // launch_softmax(), or null.
  void forward(const AttentionShape& shape, const FlashRange* sequences, HeadsView q, HeadsView k,
               HeadsView v, MutableHeadsView out, float* log_sum_exp, Stream stream);
  void backward(const AttentionShape& shape, const FlashRange* sequences, HeadsView q, HeadsView k,
                HeadsView v, const float* log_sum_exp, HeadsView dout, MutableHeadsView dq,
                MutableHeadsView dk, MutableHeadsView dv, Stream stream);

 private:
  struct Operand;
  struct Product;
  struct Call;
  ScoreRows rows_of(const Call& call) const;
  void multiply(const Call& call, const Product& product) const;
  void scores(const Call& call, HeadsView q, HeadsView k, float* to) const;
  template <class Piece>
  void each_piece(Call& call, std::int64_t bytes_of_score, const Piece& piece) const;

  CudaResources& resources_;
  CudaGemm& gemm_;
  std::int64_t workspace_;
};

}  // namespace shoal::kernels
