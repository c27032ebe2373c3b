#include "shoal/train/trainer/predictions.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

using collectives::ReduceOp;

// Number of positions of the row up to its last token.
std::int64_t length_of(const Batch& batch, std::int64_t row) {
  const std::int64_t columns = batch.input_ids.shape()[1];
  if (!batch.attention_mask.defined()) return columns;
  const auto* const mask = batch.attention_mask.const_data<std::uint8_t>() + row * columns;
  std::int64_t length = columns;
  while (length > 0 && mask[length - 1] == 0) --length;
  return length;
}

template <typename T>
std::vector<T> front_of_row(const Tensor& tensor, std::int64_t row, std::int64_t count) {
  const T* const first = tensor.const_data<T>() + row * (tensor.count() / tensor.shape()[0]);
  return {first, first + count};
}

// Each rank has its values in their places and zeros elsewhere. The sum gives every rank all values
// with their exact bits.
template <typename T>
void spread(collectives::Communicator* ranks, std::vector<T>& values) {
  if (ranks != nullptr && !values.empty())
    ranks
        ->all_reduce(values.data(), values.data(), std::ssize(values), dtype_of<T>(), ReduceOp::sum)
        ->wait();
}

}  // namespace

std::vector<std::int64_t> Predictions::best_classes() const {
  std::vector<std::int64_t> best;
  for (const SamplePrediction& sample : samples)
    for (auto at = sample.scores.begin(); at != sample.scores.end(); at += classes)
      best.push_back(std::max_element(at, at + classes) - at);
  return best;
}

void GatheredPredictions::add(const Batch& batch, std::int64_t first_row, const Tensor& scores) {
  const Shape& shape = scores.shape();
  SHOAL_CHECK(shape.rank() == 2 || shape.rank() == 3, "scores {} of a batch", to_string(shape));
  of_positions_ = shape.rank() == 3;
  classes_ = shape[-1];
  for (std::int64_t i = 0; i < shape[0]; ++i) {
    const std::int64_t row = first_row + i;
    const std::int64_t length = length_of(batch, row);
    Own own{.index = batch.ordinals.first + row * batch.ordinals.stride, .of = {}};
    own.of.scores = front_of_row<float>(scores, i, of_positions_ ? length * classes_ : classes_);
    add_labels(batch, row, of_positions_, own);
    own_.push_back(std::move(own));
  }
}

void GatheredPredictions::add_labels(const Batch& batch, std::int64_t row, bool of_positions,
                                     Own& own) const {
  const Tensor& labels = batch.labels;
  if (!labels.defined()) return;
  const std::int64_t each = labels.count() / labels.shape()[0];
  const bool per_position = labels.shape() == batch.input_ids.shape() && of_positions;
  if (labels.dtype() == DType::f32)
    own.of.values = front_of_row<float>(labels, row, each);
  else
    own.of.labels =
        front_of_row<std::int32_t>(labels, row, per_position ? length_of(batch, row) : each);
}

void GatheredPredictions::add(const Batch& batch, std::int64_t row,
                              const std::vector<std::int32_t>& tokens) {
  Own own{.index = batch.ordinals.first + row * batch.ordinals.stride, .of = {}};
  own.of.tokens = tokens;
  add_labels(batch, row, /*of_positions=*/false, own);
  own_.push_back(std::move(own));
}

Predictions GatheredPredictions::take(collectives::Communicator* ranks) {
  // For each sample: whether this rank has it, and its numbers of scores, labels, values and
  // tokens. At the end: the shape.
  constexpr std::size_t kVectors = 4, kFields = 1 + kVectors;
  const auto count = static_cast<std::size_t>(samples_);
  std::vector<std::int64_t> sizes(kFields * count, 0);
  for (const Own& own : own_) {
    SHOAL_ASSERT(own.index >= 0 && own.index < samples_);
    std::int64_t* const fields = sizes.data() + kFields * static_cast<std::size_t>(own.index);
    fields[0] += 1;
    fields[1] = std::ssize(own.of.scores);
    fields[2] = std::ssize(own.of.labels);
    fields[3] = std::ssize(own.of.values);
    fields[4] = std::ssize(own.of.tokens);
  }
  spread(ranks, sizes);
  std::int64_t shape[] = {classes_, of_positions_ ? 1 : 0};
  if (ranks != nullptr) ranks->all_reduce(shape, shape, 2, DType::i64, ReduceOp::max)->wait();

  std::vector<std::size_t> starts[kVectors];
  std::size_t totals[kVectors] = {};
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[kFields * i] != 1)
      throw_error(ErrorCode::internal, "sample {} was predicted {} times", i, sizes[kFields * i]);
    for (std::size_t field = 0; field < kVectors; ++field) {
      starts[field].push_back(totals[field]);
      totals[field] += static_cast<std::size_t>(sizes[kFields * i + 1 + field]);
    }
  }
  std::vector<float> scores(totals[0], 0), values(totals[2], 0);
  std::vector<std::int32_t> labels(totals[1], 0), tokens(totals[3], 0);
  for (const Own& own : std::exchange(own_, {})) {
    const auto i = static_cast<std::size_t>(own.index);
    std::ranges::copy(own.of.scores, scores.data() + starts[0][i]);
    std::ranges::copy(own.of.labels, labels.data() + starts[1][i]);
    std::ranges::copy(own.of.values, values.data() + starts[2][i]);
    std::ranges::copy(own.of.tokens, tokens.data() + starts[3][i]);
  }
  spread(ranks, scores);
  spread(ranks, labels);
  spread(ranks, values);
  spread(ranks, tokens);

  Predictions all{.classes = shape[0], .of_positions = shape[1] != 0, .samples = {}};
  all.samples.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto part = [&](const auto& from, std::size_t field) {
      const auto first = from.begin() + static_cast<std::ptrdiff_t>(starts[field][i]);
      return std::vector(first, first + sizes[kFields * i + 1 + field]);
    };
    all.samples[i] = {part(scores, 0), part(labels, 1), part(values, 2), part(tokens, 3)};
  }
  return all;
}

}  // namespace shoal
