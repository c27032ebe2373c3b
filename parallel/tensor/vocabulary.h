// Token embedding and language-model head with the vocabulary cut over the group: rank r has rows
// [V·r/tp, V·(r+1)/tp), which need not be equally many.
#pragma once

#include "shoal/nn/layers/layers.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

struct VocabularyRows {
  std::int64_t first = 0, count = 0;
};
VocabularyRows vocabulary_rows(std::int64_t vocabulary, int rank, int ranks);

// What each id is to a rank, i32 [V]: the row of its part, or -1; that or 0; 0 where it has it, -1.
struct OwnRows {
  Tensor numbers, rows, mine;
};

// ids [B, T], all positions whatever the split -> local (exchange.h); under `sequence` T must
// divide. An id outside the vocabulary throws with its place, of ids on a device as its kernels
// report it.
class VocabularyParallelEmbedding final : public nn::EmbeddingLike {
 public:
  // `padding`: as of nn::Embedding.
  VocabularyParallelEmbedding(const TensorParallel& group, std::int64_t vocabulary,
                              std::int64_t channels, float std, std::int64_t padding = -1);
  std::string_view kind() const override { return "VocabularyParallelEmbedding"; }
  nn::Value forward(nn::Context& context, const Tensor& ids) override;
  const std::shared_ptr<nn::Parameter>& weight() const override { return weight_; }

 private:
  const OwnRows& own_rows(nn::Context& context);
  TensorParallel group_;
  std::shared_ptr<nn::Parameter> weight_;
  std::int64_t padding_;  // this rank's row of it; not in [0, rows): none
  OwnRows own_;           // from the first forward on
};

// Logits and their cross-entropy, slice of rows by slice of rows; of a slice the ranks exchange
// four numbers a row, while the next slice's logits are computed. As nn::linear_cross_entropy,
// gradients are computed in forward: backward accepts 1 only.
//
// Hidden states are local, targets [B, T] those of all positions of this rank's samples. Rows
// without a target are left out where the host knows the targets (Context::host_copy()), and in
// evaluation, where it reads them; else every row is computed, those without losing nothing, and
// targets of the result are -1. loss_sum and targets are the group's, the same on each of its
// ranks.
class VocabularyParallelHead final : public nn::HeadLoss {
 public:
  // `config` is the whole layer's, but that `tied` is the part of the same group's embedding.
  VocabularyParallelHead(const TensorParallel& group, const nn::LmHeadConfig& config);
  VocabularyParallelHead(const TensorParallel& group, std::int64_t vocabulary,
                         std::int64_t channels, float std);
  VocabularyParallelHead(const TensorParallel& group, std::shared_ptr<nn::Parameter> tied);
  std::string_view kind() const override { return "VocabularyParallelHead"; }
  nn::LossOutput forward(nn::Context& context, const nn::Value& hidden, const Tensor& targets,
                         const nn::LossOptions& options) override;
  // Whole ones, of all positions of this rank's samples.
  Tensor logits(nn::Context& context, const Tensor& hidden) override;
  const std::shared_ptr<nn::Parameter>& weight() const override { return weight_; }

  // Rows of a slice, on all ranks alike. 0: as many as give 64 MiB of logits, of which there are
  // two slices at a time.
  void set_slice_rows(std::int64_t rows) { slice_rows_ = rows; }

 private:
  TensorParallel group_;
  std::shared_ptr<nn::Parameter> weight_, bias_;
  std::int64_t slice_rows_ = 0;
};

}  // namespace shoal::parallel
