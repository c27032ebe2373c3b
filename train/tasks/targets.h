// Targets of heads: what a batch's labels must be like, and what they are where there are none.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "shoal/nn/layers/chain.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/runtime/tensor/tensor.h"
#include "shoal/train/data/batch.h"

namespace shoal {

enum class TargetsOf : std::uint8_t {
  samples,    // i32 [B]: a class; numbers: f32 [B, width], NaN: none
  positions,  // i32 [B, T]: a class of each
  places,     // i32 [B, 2]: two positions
};

struct TargetForm {
  std::string head;  // "sequence classification", for messages
  TargetsOf of = TargetsOf::samples;
  std::int64_t classes = 0;  // or the width of numbers; places: 0, they are positions
  bool numbers = false;

  Shape shape(std::int64_t rows, std::int64_t length) const;
  DType dtype() const { return numbers ? DType::f32 : DType::i32; }
};

Tensor no_targets(const TargetForm& form, std::int64_t rows, std::int64_t length,
                  MemoryResource& memory);
// The batch's labels, or none. invalid_argument with the row where one is no class, position or
// token, or where they are of another shape.
Tensor targets_of(const TargetForm& form, const Batch& batch, MemoryResource& memory);
// A batch's ids, targets and mask of bytes, for a head other than a language model's.
// invalid_argument where an id is outside the vocabulary or samples have more positions than the
// model.
nn::ChainInput labelled_input(const TargetForm& form, const Batch& batch, std::int64_t vocabulary,
                              std::int64_t positions, MemoryResource& memory);
// The mask that a decoder's attention needs of `mask`, u8 [B, T] or undefined. A position sees what
// comes before it alone: where each row is a text and then padding, and no padding counts(row,
// position), it is none, and the quicker kernels that know no masks serve.
Tensor needed_mask(const Tensor& mask,
                   const std::function<bool(std::int64_t row, std::int64_t position)>& counts);
// The same mask as numbers of keys, i32 [B], where each row of u8 [B, T] is a text and then
// padding; else as it is. Attention passes over keys behind the last one, and cuDNN's serves.
Tensor mask_as_lengths(const Tensor& mask, MemoryResource& memory);
// How many targets there are in a batch's labels.
std::int64_t count_targets(const Tensor& labels);

}  // namespace shoal
