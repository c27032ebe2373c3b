// The required form of a head's labels, and targets for rows without labels.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/models/decoder/labels.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/runtime/tensor/tensor.h"
#include "shoal/train/data/batch.h"

namespace shoal {

enum class TargetsOf : std::uint8_t {
  samples,    // i32 [B]: a class; or numbers, f32 [B, width], NaN: no target
  positions,  // i32 [B, T]: a class per position
  places,     // i32 [B, 2]: two positions
};

struct TargetForm {
  std::string head;  // "sequence classification", for messages
  TargetsOf of = TargetsOf::samples;
  std::int64_t classes = 0;  // or the width of numbers; 0 for `places`
  bool numbers = false;

  Shape shape(std::int64_t rows, std::int64_t length) const;
  DType dtype() const { return numbers ? DType::f32 : DType::i32; }
};

// The labels of a decoder's or an encoder-decoder's head, other than a language model's.
TargetForm target_form(nn::DecoderHead head, const nn::DecoderLabels& labels);

Tensor no_targets(const TargetForm& form, std::int64_t rows, std::int64_t length,
                  MemoryResource& memory);
// The batch's labels, or no targets. Throws invalid_argument if the shape differs, or, naming the
// row, if a value is not a class, position or token.
Tensor targets_of(const TargetForm& form, const Batch& batch, MemoryResource& memory);
// A batch's ids, targets and byte mask, for a head other than a language model's. Throws
// invalid_argument if an id is outside the vocabulary or a sample is longer than the model's
// positions.
nn::ChainInput labelled_input(const TargetForm& form, const Batch& batch, std::int64_t vocabulary,
                              std::int64_t positions, MemoryResource& memory);
// The part of `mask`, u8 [B, T] or undefined, that a decoder's attention needs. A decoder's
// position sees only earlier positions. So no mask is needed if each row is a text followed by
// padding and no padding position has a target (`counts`). The result is then undefined, which
// permits faster kernels.
Tensor needed_mask(const Tensor& mask,
                   const std::function<bool(std::int64_t row, std::int64_t position)>& counts);
// Turns the mask u8 [B, T] into numbers of keys, i32 [B], if each row is a text followed by
// padding; otherwise returns it unchanged. Attention then skips the keys after a row's last
// visible key, and cuDNN's kernels apply.
Tensor mask_as_lengths(const Tensor& mask, MemoryResource& memory);
// Number of targets in a batch's labels.
std::int64_t count_targets(const Tensor& labels);

}  // namespace shoal
