// Attention as products of whole matrices of scores with a softmax between them (Vaswani et al.,
// "Attention Is All You Need", 2017, as it stands there): for GPUs before sm_80, whose tensor cores
// only cuBLASLt speaks to here, and for heads that the fused kernels are not made for. Scores are
// f32, probabilities of the inputs' dtype; pieces of a call follow each other, so that the scores
// never take more than a workspace. Same dropout, same masks, and the same bits always.
#pragma once

#include "shoal/kernels/attention.h"
#include "shoal/kernels/cuda/attention_pieces.h"
#include "shoal/kernels/cuda/attention_softmax.cuh"
#include "shoal/kernels/cuda/gemm.h"
#include "shoal/kernels/cuda/room.h"

namespace shoal::kernels {

class AttentionProducts {
 public:
  // Both must outlive it. `workspace`: bytes; 0: as many as it takes.
  AttentionProducts(CudaRoom& room, CudaGemm& gemm, std::int64_t workspace)
      : room_(room), gemm_(gemm), workspace_(workspace) {}

  // As AttentionKernels, but that each head has a key head of its own; log_sum_exp null: not kept;
  // sequences: as launch_softmax() takes them, or null.
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

  CudaRoom& room_;
  CudaGemm& gemm_;
  std::int64_t workspace_;
};

}  // namespace shoal::kernels
