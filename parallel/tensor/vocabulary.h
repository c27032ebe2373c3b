// Token embedding and language-model head with the vocabulary split over the group: rank r has rows
// [V·r/tp, V·(r+1)/tp), so row counts may differ by one.
#pragma once

#include "shoal/nn/layers/layers.h"
#include "shoal/nn/layers/lm_head.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

struct VocabularyRows {
  std::int64_t first = 0, count = 0;
};
VocabularyRows vocabulary_rows(std::int64_t vocabulary, int rank, int ranks);

// Per token id, i32 [V]. numbers: local row or -1; rows: local row or 0; mine: 0 if owned, else -1.
struct OwnRows {
  Tensor numbers, rows, mine;
};

// ids [B, T] (all positions for any split) -> local (exchange.h); under `sequence` T must be a
// multiple of tp. An id outside the vocabulary throws with its position; for device ids, the
// kernels report it.
class VocabularyParallelEmbedding final : public nn::EmbeddingLike {
 public:
  // `padding`: as in nn::Embedding.
  VocabularyParallelEmbedding(const TensorParallel& group, std::int64_t vocabulary,
                              std::int64_t channels, float std, std::int64_t padding = -1);
  std::string_view kind() const override { return "VocabularyParallelEmbedding"; }
  nn::Value forward(nn::Context& context, const Tensor& ids) override;
  const std::shared_ptr<nn::Parameter>& weight() const override { return weight_; }

 private:
  const OwnRows& own_rows(nn::Context& context);
  TensorParallel group_;
  std::shared_ptr<nn::Parameter> weight_;
  std::int64_t padding_;  // this rank's row of the padding token; outside [0, rows): none
  OwnRows own_;           // set by the first forward
};

// Computes logits and their cross-entropy, one slice of rows at a time. Per slice the ranks
// exchange four numbers per row, while the next slice's logits are computed. As in
// nn::linear_cross_entropy, forward computes the gradients, so backward accepts only a loss
// gradient of 1.
//
// Hidden states are local; targets [B, T] cover all positions of this rank's samples. Rows without
// a target are skipped in evaluation, where the host reads the targets, and if the host knows the
// targets (HostTargets). Otherwise every row is computed, rows without a target have loss 0, and
// the result's `targets` is -1. loss_sum and targets cover the group and are equal on its ranks.
class VocabularyParallelHead final : public nn::HeadLoss {
 public:
  // `config` describes the whole layer, except for `config.tied`: this is the part that this rank's
  // embedding holds.
  VocabularyParallelHead(const TensorParallel& group, const nn::LmHeadConfig& config);
  VocabularyParallelHead(const TensorParallel& group, std::int64_t vocabulary,
                         std::int64_t channels, float std);
  VocabularyParallelHead(const TensorParallel& group, std::shared_ptr<nn::Parameter> tied);
  std::string_view kind() const override { return "VocabularyParallelHead"; }
  nn::LossOutput forward(nn::Context& context, const nn::Value& hidden, const Tensor& targets,
                         const nn::LossOptions& options) override;
  // Whole logits, for all positions of this rank's samples.
  Tensor logits(nn::Context& context, const Tensor& hidden) override;
  const std::shared_ptr<nn::Parameter>& weight() const override { return weight_; }

  // Rows per slice, the same on all ranks. 0: as many as give 64 MiB of logits; two slices exist at
  // a time.
  void set_slice_rows(std::int64_t rows) { slice_rows_ = rows; }

 private:
  TensorParallel group_;
  std::shared_ptr<nn::Parameter> weight_, bias_;
  float soft_cap_;
  std::int64_t slice_rows_ = 0;
};

}  // namespace shoal::parallel
