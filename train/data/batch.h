// Batches: samples collated into the host tensors that a training step consumes.
//
//   const std::vector<Sample> samples = {dataset.get(0), dataset.get(1)};
//   const PaddingCollator collator(0, 8);  // pads with token 0, to a multiple of 8
//   const double loss = model.train(collator.collate(samples, memory));
#pragma once

#include <cstdint>
#include <span>

#include "shoal/runtime/tensor/tensor.h"
#include "shoal/train/data/dataset.h"

namespace shoal {

// Row i of a batch is sample `first + i * stride` of the epoch's list (Sampler::ordinal). Ordinals
// do not depend on ranks or microbatches, so random numbers can use them (decision 10). Subtract
// the list position at the start of the step (SamplerState) to get a sample's index in the global
// batch.
struct SampleOrdinals {
  std::int64_t first = 0, stride = 1;
  friend bool operator==(const SampleOrdinals&, const SampleOrdinals&) = default;
};

// Host tensors that own their memory.
struct Batch {
  Tensor input_ids;  // [B, T] i32
  // Undefined if whole-sample labels are expected and no sample has any. Otherwise:
  // - i32 [B, T], not shifted, kIgnoreLabel: no loss. Causal language models may share input_ids'
  //   storage;
  // - i32 [B] (one per sample) or [B, n]: labels of whole samples;
  // - i32 [B, T2], a second sequence (summarization, translation): what the decoder predicts;
  // - f32 [B, n]: values of whole samples, NaN where missing.
  Tensor labels;
  Tensor attention_mask;  // [B, T] u8; undefined: every position counts
  Tensor token_type_ids;  // [B, T] i32; undefined: all 0
  Tensor sequences;       // [B, n] i32, as in nn::ChainInput; undefined: each row is one text
  SampleOrdinals ordinals;
  std::int64_t rows = 0;  // B; 0: this Batch was never filled
};

// Makes a batch from samples, in `memory`, which must outlive it. Several loader threads call it
// concurrently.
class Collator {
 public:
  virtual ~Collator() = default;
  virtual Batch collate(std::span<const Sample> samples, MemoryResource& memory) const = 0;
};

// Whether Sample::labels belong to positions, to the whole sample, or are a second sequence.
enum class LabelsOf : std::uint8_t { positions, sample, sequence };

// Pads each sample to the longest one, rounded up to a multiple of `pad_to_multiple_of`. The
// padding is `pad_id` in input_ids, kIgnoreLabel in labels of positions and in second sequences
// (padded to a multiple of `label_multiple`), 0 in attention_mask and token_type_ids. If no sample
// is padded or has a mask, attention_mask is undefined. invalid_argument: the vectors of a sample
// differ in length, or samples with whole-sample labels or values have different numbers of them
// (samples without any are accepted). If a sample has sequences, its padding becomes one more
// sequence; rows with fewer sequences get empty ones at the end.
class PaddingCollator final : public Collator {
 public:
  explicit PaddingCollator(std::int32_t pad_id = 0, std::int64_t pad_to_multiple_of = 1,
                           LabelsOf labels = LabelsOf::positions, std::int64_t label_multiple = 1);
  Batch collate(std::span<const Sample> samples, MemoryResource& memory) const override;

 private:
  std::int32_t pad_id_;
  std::int64_t multiple_;
  LabelsOf labels_;
  std::int64_t label_multiple_;
};

}  // namespace shoal
