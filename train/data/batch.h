// Samples put together: what a training step is fed.
#pragma once

#include <cstdint>
#include <span>

#include "shoal/runtime/tensor/tensor.h"
#include "shoal/train/data/dataset.h"

namespace shoal {

// Row i of a batch is sample `first + i * stride` of the epoch's list (Sampler::ordinal): the same
// number whatever the ranks and microbatches, as random numbers need it (decision 10). Subtract the
// list's position at the start of the step (SamplerState) for its place in the global batch.
struct SampleOrdinals {
  std::int64_t first = 0, stride = 1;
  friend bool operator==(const SampleOrdinals&, const SampleOrdinals&) = default;
};

// Host tensors with memory of their own.
struct Batch {
  Tensor input_ids;  // [B, T] i32
  // i32, kIgnoreLabel where no loss: [B, T], not shifted, for causal language models the same
  // storage as input_ids; or of the whole sample, [B] (one) or [B, n]; or values, f32 [B, n],
  // NaN where there is none. Undefined: whole samples that have none.
  Tensor labels;
  Tensor attention_mask;  // [B, T] u8; undefined: every position counts
  Tensor token_type_ids;  // [B, T] i32; undefined: all 0
  Tensor sequences;       // [B, n] i32, as nn::ChainInput's; undefined: a row is one text
  SampleOrdinals ordinals;
  std::int64_t rows = 0;  // B; 0 in a Batch that was never filled
};

// Makes a batch of samples; called by several loader threads at once.
class Collator {
 public:
  virtual ~Collator() = default;
  virtual Batch collate(std::span<const Sample> samples, MemoryResource& memory) const = 0;
};

// What Sample::labels are of.
enum class LabelsOf : std::uint8_t { positions, sample };

// Pads to the longest sample, then up to a multiple of `pad_to_multiple_of`: input_ids with
// `pad_id`, labels of positions with kIgnoreLabel, attention_mask and token_type_ids with 0.
// Samples of one length, without masks, give no attention_mask. A sample whose vectors differ in
// length is refused; so are labels of whole samples, or values, of which samples have other
// numbers (none is a number that goes with any). Where a sample has sequences, padding is one more,
// and a row with fewer than another has empty ones at its end.
class PaddingCollator final : public Collator {
 public:
  explicit PaddingCollator(std::int32_t pad_id = 0, std::int64_t pad_to_multiple_of = 1,
                           LabelsOf labels = LabelsOf::positions);
  Batch collate(std::span<const Sample> samples, MemoryResource& memory) const override;

 private:
  std::int32_t pad_id_;
  std::int64_t multiple_;
  LabelsOf labels_;
};

}  // namespace shoal
