#include "shoal/train/tasks/targets.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shoal/kernels/checks.h"
#include "shoal/runtime/base/error.h"

namespace shoal {

Shape TargetForm::shape(std::int64_t rows, std::int64_t length) const {
  if (of == TargetsOf::places) return {rows, 2};
  if (of == TargetsOf::positions) return {rows, length};
  return numbers ? Shape{rows, classes} : Shape{rows};
}

TargetForm target_form(nn::DecoderHead head, const nn::DecoderLabels& labels) {
  TargetForm form{.head = std::string(to_string(head)), .classes = labels.num_labels};
  if (head == nn::DecoderHead::question_answering) form.of = TargetsOf::places;
  if (head == nn::DecoderHead::token_classification) form.of = TargetsOf::positions;
  form.numbers = head == nn::DecoderHead::sequence_classification && labels.regression();
  return form;
}

Tensor no_targets(const TargetForm& form, std::int64_t rows, std::int64_t length,
                  MemoryResource& memory) {
  Tensor targets = Tensor::empty(form.shape(rows, length), form.dtype(), memory, MemoryTag::data);
  if (form.numbers)
    std::fill_n(targets.data<float>(), targets.count(), std::numeric_limits<float>::quiet_NaN());
  else
    std::fill_n(targets.data<std::int32_t>(), targets.count(), kIgnoreLabel);
  return targets;
}

nn::ChainInput labelled_input(const TargetForm& form, const Batch& batch, std::int64_t vocabulary,
                              std::int64_t positions, MemoryResource& memory) {
  // Checked here: a device's kernels could report bad ids only after the step was queued.
  kernels::check::ids("embedding", batch.input_ids, vocabulary);
  SHOAL_CHECK(!batch.sequences.defined(), "{} takes one text a row, not packed sequences",
              form.head);
  const std::int64_t length = batch.input_ids.shape()[1];
  if (length > positions)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a sample has {} positions, but the model {}", length, positions),
                fmt::format("cut samples: --max_seq_length {}", positions));
  nn::ChainInput input;
  input.ids = batch.input_ids;
  input.targets = targets_of(form, batch, memory);
  input.key_mask = batch.attention_mask;
  return input;
}

Tensor needed_mask(const Tensor& mask,
                   const std::function<bool(std::int64_t row, std::int64_t position)>& counts) {
  if (!mask.defined()) return mask;
  const std::int64_t length = mask.shape()[1];
  const auto* const shown = mask.const_data<std::uint8_t>();
  for (std::int64_t i = 0; i < mask.count(); ++i) {
    const bool resumes = i % length > 0 && shown[i] != 0 && shown[i - 1] == 0;
    if (resumes || (shown[i] == 0 && counts(i / length, i % length))) return mask;
  }
  return {};
}

Tensor mask_as_lengths(const Tensor& mask, MemoryResource& memory) {
  if (!mask.defined()) return mask;
  const std::int64_t rows = mask.shape()[0], length = mask.shape()[1];
  Tensor lengths = Tensor::empty({rows}, DType::i32, memory, MemoryTag::data);
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* const shown = mask.const_data<std::uint8_t>() + row * length;
    const auto* const end = std::find(shown, shown + length, 0);
    if (std::any_of(end, shown + length, [](std::uint8_t key) { return key != 0; })) return mask;
    lengths.data<std::int32_t>()[row] = static_cast<std::int32_t>(end - shown);
  }
  return lengths;
}

std::int64_t count_targets(const Tensor& labels) {
  if (!labels.defined()) return 0;
  if (labels.dtype() == DType::f32)
    return std::count_if(labels.const_data<float>(), labels.const_data<float>() + labels.count(),
                         [](float value) { return !std::isnan(value); });
  const auto* const ids = labels.const_data<std::int32_t>();
  return std::count_if(ids, ids + labels.count(), [](std::int32_t id) { return id >= 0; });
}

Tensor targets_of(const TargetForm& form, const Batch& batch, MemoryResource& memory) {
  const std::int64_t rows = batch.input_ids.shape()[0], length = batch.input_ids.shape()[1];
  const Tensor& labels = batch.labels;
  if (!labels.defined()) return no_targets(form, rows, length, memory);
  SHOAL_CHECK(labels.storage() != batch.input_ids.storage(),
              "{} is given its own input as labels; the data must say what the labels are",
              form.head);
  const Shape wanted = form.shape(rows, length);
  SHOAL_CHECK(labels.shape() == wanted && labels.dtype() == form.dtype(),
              "{} takes labels {} {}, but the batch has {} {}{}", form.head,
              to_string(form.dtype()), to_string(wanted), to_string(labels.dtype()),
              to_string(labels.shape()),
              form.numbers ? " (a model of one label, or with problem_type regression, "
                             "learns numbers)"
                           : "");
  if (form.numbers) return labels;
  const bool places = form.of == TargetsOf::places;
  const std::int64_t bound = places ? length : form.classes;
  const auto* const ids = labels.const_data<std::int32_t>();
  const auto* const end = ids + labels.count();
  const auto* const wrong =
      std::find_if(ids, end, [bound](std::int32_t id) { return id >= bound; });
  if (wrong == end) return labels;
  const std::int64_t row = (wrong - ids) / std::max<std::int64_t>(labels.count() / rows, 1);
  if (!places)
    throw_error(ErrorCode::invalid_argument,
                "label {} of row {} is out of range: the model has labels 0 to {}", *wrong, row,
                bound - 1);
  throw_error(ErrorCode::invalid_argument,
              "the answer of row {} is at position {}, but its batch has {}", row, *wrong, length);
}

}  // namespace shoal
