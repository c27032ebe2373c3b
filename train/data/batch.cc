#include "shoal/train/data/batch.h"

#include <algorithm>
#include <limits>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

template <typename T>
void check_length(const std::vector<T>& values, std::size_t length, const char* name,
                  std::size_t row) {
  SHOAL_CHECK(values.empty() || values.size() == length,
              "collate: sample {} has {} input_ids but {} {}", row, length, values.size(), name);
}

// [rows, columns]: each row has its sample's values, then `fill`.
template <typename T, typename Values>
Tensor padded(std::span<const Sample> samples, std::int64_t columns, T fill, MemoryResource& memory,
              const Values& values) {
  const auto rows = static_cast<std::int64_t>(samples.size());
  Tensor tensor = Tensor::empty({rows, columns}, dtype_of<T>(), memory, MemoryTag::data);
  T* row = tensor.data<T>();
  for (const Sample& sample : samples) {
    T* const end = values(sample, row);
    std::fill(end, row + columns, fill);
    row += columns;
  }
  return tensor;
}

// [rows, n], or [rows] if `flat` and n is 1. n is the count that each non-empty sample has; empty
// samples get `none`. Undefined if all samples are empty.
template <typename T>
Tensor of_samples(std::span<const Sample> samples, std::vector<T> Sample::* member,
                  const char* name, T none, bool flat, MemoryResource& memory) {
  std::size_t count = 0, first = 0;
  for (std::size_t row = 0; row < samples.size(); ++row) {
    const std::size_t own = (samples[row].*member).size();
    if (own == 0) continue;
    if (count == 0) {
      count = own;
      first = row;
    }
    SHOAL_CHECK(own == count, "collate: sample {} has {} {}, but sample {} has {}", row, own, name,
                first, count);
  }
  if (count == 0) return {};
  const auto rows = static_cast<std::int64_t>(samples.size());
  const auto columns = static_cast<std::int64_t>(count);
  Tensor tensor = padded(samples, columns, none, memory, [member](const Sample& sample, T* row) {
    return std::copy((sample.*member).begin(), (sample.*member).end(), row);
  });
  return columns == 1 && flat ? tensor.reshaped({rows}) : tensor;
}

Tensor sequences_of(std::span<const Sample> samples, std::int64_t columns, MemoryResource& memory) {
  const auto is_padded = [columns](const Sample& sample) {
    return std::ssize(sample.input_ids) < columns;
  };
  std::int64_t most = 0;
  bool any = false;
  for (std::size_t row = 0; row < samples.size(); ++row) {
    const std::vector<std::int32_t>& own = samples[row].sequences;
    any = any || !own.empty();
    SHOAL_CHECK(own.empty() || (own.front() == 0 && std::is_sorted(own.begin(), own.end()) &&
                                own.back() <= std::ssize(samples[row].input_ids)),
                "collate: the {} sequences of sample {} do not ascend from 0 to its {} input_ids",
                own.size(), row, samples[row].input_ids.size());
    most = std::max<std::int64_t>(
        most, std::max<std::int64_t>(std::ssize(own), 1) + (is_padded(samples[row]) ? 1 : 0));
  }
  if (!any) return {};
  return padded(samples, most, static_cast<std::int32_t>(columns), memory,
                [&](const Sample& sample, std::int32_t* row) {
                  if (sample.sequences.empty())
                    *row++ = 0;
                  else
                    row = std::copy(sample.sequences.begin(), sample.sequences.end(), row);
                  if (is_padded(sample))
                    *row++ = static_cast<std::int32_t>(sample.input_ids.size());
                  return row;
                });
}

Tensor labels_of_samples(std::span<const Sample> samples, MemoryResource& memory) {
  Tensor classes =
      of_samples(samples, &Sample::labels, "labels", kIgnoreLabel, /*flat=*/true, memory);
  Tensor values = of_samples(samples, &Sample::values, "values",
                             std::numeric_limits<float>::quiet_NaN(), /*flat=*/false, memory);
  SHOAL_CHECK(!classes.defined() || !values.defined(),
              "collate: of {} samples some have labels and some have values", samples.size());
  return values.defined() ? values : classes;
}

// Undefined if no sample has labels.
Tensor second_sequences(std::span<const Sample> samples, std::int64_t multiple,
                        MemoryResource& memory) {
  std::int64_t longest = 0;
  for (const Sample& sample : samples) longest = std::max(longest, std::ssize(sample.labels));
  if (longest == 0) return {};
  return padded(samples, (longest + multiple - 1) / multiple * multiple, kIgnoreLabel, memory,
                [](const Sample& sample, std::int32_t* row) {
                  return std::copy(sample.labels.begin(), sample.labels.end(), row);
                });
}

}  // namespace

PaddingCollator::PaddingCollator(std::int32_t pad_id, std::int64_t pad_to_multiple_of,
                                 LabelsOf labels, std::int64_t label_multiple)
    : pad_id_(pad_id),
      multiple_(pad_to_multiple_of),
      labels_(labels),
      label_multiple_(label_multiple) {
  SHOAL_CHECK(multiple_ > 0 && label_multiple_ > 0, "collate: padding to multiples of {} and {}",
              multiple_, label_multiple_);
}

Batch PaddingCollator::collate(std::span<const Sample> samples, MemoryResource& memory) const {
  SHOAL_CHECK(!samples.empty(), "collate: no samples");
  std::size_t longest = 0, shortest = samples[0].input_ids.size();
  bool masks = false, labels = false, types = false;
  for (std::size_t row = 0; row < samples.size(); ++row) {
    const Sample& sample = samples[row];
    const std::size_t length = sample.input_ids.size();
    SHOAL_CHECK(length > 0, "collate: sample {} is empty", row);
    if (labels_ == LabelsOf::positions) {
      check_length(sample.labels, length, "labels", row);
      SHOAL_CHECK(sample.values.empty(),
                  "collate: sample {} has {} values, where labels are of positions", row,
                  sample.values.size());
    }
    check_length(sample.attention_mask, length, "attention_mask values", row);
    check_length(sample.token_type_ids, length, "token_type_ids", row);
    longest = std::max(longest, length);
    shortest = std::min(shortest, length);
    masks = masks || !sample.attention_mask.empty();
    labels = labels || !sample.labels.empty();
    types = types || !sample.token_type_ids.empty();
  }
  const std::int64_t columns =
      (static_cast<std::int64_t>(longest) + multiple_ - 1) / multiple_ * multiple_;
  const bool is_padded = static_cast<std::int64_t>(shortest) < columns;

  Batch batch;
  batch.rows = static_cast<std::int64_t>(samples.size());
  const auto ids = [](const Sample& sample, std::int32_t* row) {
    return std::copy(sample.input_ids.begin(), sample.input_ids.end(), row);
  };
  batch.input_ids = padded(samples, columns, pad_id_, memory, ids);
  if (labels_ == LabelsOf::sample) {
    batch.labels = labels_of_samples(samples, memory);
  } else if (labels_ == LabelsOf::sequence) {
    batch.labels = second_sequences(samples, label_multiple_, memory);
  } else if (labels || is_padded) {
    batch.labels = padded(
        samples, columns, kIgnoreLabel, memory, [&](const Sample& sample, std::int32_t* row) {
          return sample.labels.empty() ? ids(sample, row)
                                       : std::copy(sample.labels.begin(), sample.labels.end(), row);
        });
  } else {
    batch.labels = batch.input_ids;
  }
  if (masks || is_padded)
    batch.attention_mask = padded(
        samples, columns, std::uint8_t{0}, memory, [](const Sample& sample, std::uint8_t* row) {
          return sample.attention_mask.empty()
                     ? std::fill_n(row, sample.input_ids.size(), std::uint8_t{1})
                     : std::copy(sample.attention_mask.begin(), sample.attention_mask.end(), row);
        });
  batch.sequences = sequences_of(samples, columns, memory);
  if (types)
    batch.token_type_ids = padded(
        samples, columns, std::int32_t{0}, memory, [](const Sample& sample, std::int32_t* row) {
          return sample.token_type_ids.empty()
                     ? std::fill_n(row, sample.input_ids.size(), 0)
                     : std::copy(sample.token_type_ids.begin(), sample.token_type_ids.end(), row);
        });
  return batch;
}

}  // namespace shoal
