#include "shoal/train/trainer/microbatches.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "shoal/train/data/dataset.h"

namespace shoal {
namespace {

// `rows` rows: first those of `from`, then copies of row 0.
Tensor with_rows(const Tensor& from, std::int64_t rows, MemoryResource& memory) {
  if (!from.defined()) return {};
  Tensor more = Tensor::empty(from.shape().with(0, rows), from.dtype(), memory, MemoryTag::data);
  const std::size_t row = from.bytes() / static_cast<std::size_t>(from.shape()[0]);
  auto* to = static_cast<std::byte*>(more.view().data);
  const void* const source = from.const_view().data;
  std::memcpy(to, source, from.bytes());
  for (std::int64_t i = from.shape()[0]; i < rows; ++i)
    std::memcpy(to + static_cast<std::size_t>(i) * row, source, row);
  return more;
}

// Removes the targets of rows from `first_row` on, whether classes, positions or numbers.
void drop_targets(const Tensor& targets, std::int64_t first_row) {
  const std::int64_t first = targets.count() / targets.shape()[0] * first_row;
  if (targets.dtype() == DType::i32) {
    auto* const classes = targets.data<std::int32_t>();
    std::fill(classes + first, classes + targets.count(), kIgnoreLabel);
  } else {
    auto* const numbers = targets.data<float>();
    std::fill(numbers + first, numbers + targets.count(), std::numeric_limits<float>::quiet_NaN());
  }
}

// Adds rows without targets until `unit` divides the batch.
nn::ChainInput filled_up(nn::ChainInput input, std::int64_t unit, MemoryResource& memory) {
  const std::int64_t rows = input.ids.shape()[0], wanted = (rows + unit - 1) / unit * unit;
  if (rows == wanted) return input;
  for (Tensor* tensor : input.tensors()) *tensor = with_rows(*tensor, wanted, memory);
  drop_targets(input.targets, rows);
  return input;
}

// Rows [first, first + rows), as views.
nn::ChainInput rows_of(const nn::ChainInput& input, std::int64_t first, std::int64_t rows) {
  nn::ChainInput part = input;
  for (Tensor* tensor : part.tensors())
    if (tensor->defined()) *tensor = tensor->narrowed(0, first, rows);
  return part;
}

nn::VisibleRows visible_in(const nn::ChainInput& input, std::int64_t granularity,
                           MemoryResource& memory) {
  const Tensor& mask = input.key_mask;
  const bool lengths = mask.defined() && mask.dtype() == DType::i32;
  if (granularity == 0 || !lengths) return {};
  return nn::visible_rows(mask, input.ids.shape()[1], granularity, memory);
}

// A single row without targets.
nn::ChainInput row_without_targets(const Task& task, std::int64_t length, MemoryResource& memory) {
  Batch batch;
  batch.rows = 1;
  batch.input_ids = Tensor::zeros({1, length}, DType::i32, memory, MemoryTag::data);
  batch.labels = task.no_targets(1, length, memory);
  return task.chain_input(batch, memory);
}

}  // namespace

std::vector<parallel::Microbatch> cut_batches(const Task& task, std::span<const Batch> batches,
                                              std::int64_t first_ordinal,
                                              const nn::LossOptions& loss, const BatchCut& cut,
                                              MemoryResource& memory) {
  std::vector<parallel::Microbatch> all;
  for (const Batch& batch : batches) {
    nn::ChainInput input =
        filled_up(task.chain_input(batch, memory), cut.pieces * cut.parts, memory);
    input.loss = loss;
    for (std::int64_t piece = 0; piece < cut.pieces; ++piece) {
      const std::int64_t first = cut.first_row(piece, batch.rows);
      nn::ChainInput part = rows_of(input, first, cut.rows_of_part(batch.rows));
      part.visible = visible_in(part, cut.visible_granularity, memory);
      // Sample numbers are relative to the step: random counters have 24 bits for samples, and a
      // separate word for the step.
      all.push_back(
          {std::move(part),
           static_cast<std::uint32_t>(batch.ordinals.first - first_ordinal + first * cut.stride)});
    }
  }
  while (std::ssize(all) < cut.batches * cut.pieces)
    all.push_back({row_without_targets(task, cut.length, memory),
                   static_cast<std::uint32_t>(cut.part * cut.stride)});
  return all;
}

}  // namespace shoal
