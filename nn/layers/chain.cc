#include "shoal/nn/layers/chain.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <utility>

#include "shoal/nn/autograd/tape.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

Value ResidualStream::collapse(Context& context) && {
  if (!branch) return std::move(residual);
  return dropout_add(context, *branch, residual, dropout);
}

std::vector<Value> ResidualStream::carried(Context& context) && {
  std::vector<Value> values(1);
  if (encoded) values.push_back(std::move(*encoded));
  values[0] = std::move(*this).collapse(context);
  return values;
}

ResidualStream ResidualStream::of(std::vector<Value> carried) {
  ResidualStream stream{std::move(carried.at(0)), std::nullopt, {}};
  if (carried.size() > 1) stream.encoded = std::move(carried[1]);
  return stream;
}

Value ResidualStream::norm(Context& context, NormLike& norm) {
  ResidualNorm out =
      branch ? norm.forward(context, residual, *branch, dropout) : norm.fork(context, residual);
  residual = std::move(out.sum);
  branch.reset();
  dropout = {};
  return std::move(out.normed);
}

Tensor positions_in(const Tensor& sequences, std::int64_t length, MemoryResource& memory) {
  SHOAL_CHECK(sequences.dtype() == DType::i32 && sequences.shape().rank() == 2 &&
                  sequences.shape()[1] > 0 && sequences.device().is_cpu(),
              "positions in sequences {} {} on {}", to_string(sequences.dtype()),
              to_string(sequences.shape()), to_string(sequences.device()));
  const std::int64_t rows = sequences.shape()[0], count = sequences.shape()[1];
  Tensor positions = Tensor::empty({rows, length}, DType::i32, memory, MemoryTag::data);
  const auto* begin = sequences.const_data<std::int32_t>();
  auto* position = positions.data<std::int32_t>();
  for (std::int64_t row = 0; row < rows; ++row, begin += count, position += length)
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t end = i + 1 < count ? begin[i + 1] : length;
      SHOAL_CHECK((i > 0 || begin[0] == 0) && begin[i] <= end && end <= length,
                  "sequence {} of row {} is the tokens [{}, {}) of {}", i, row, begin[i], end,
                  length);
      std::iota(position + begin[i], position + end, 0);
    }
  return positions;
}

std::int64_t target_rows_granularity(const Tensor& targets) {
  return std::max<std::int64_t>((targets.count() / 16 + 63) / 64 * 64, 64);
}

Tensor rows_with_targets(const Tensor& targets, std::int64_t granularity, MemoryResource& memory) {
  SHOAL_CHECK(targets.dtype() == DType::i32 && targets.device().is_cpu() && granularity > 0,
              "rows of targets {} {} on {}, in multiples of {}", to_string(targets.dtype()),
              to_string(targets.shape()), to_string(targets.device()), granularity);
  std::vector<std::int32_t> rows;
  for (std::int64_t i = 0; i < targets.count(); ++i)
    if (targets.const_data<std::int32_t>()[i] >= 0) rows.push_back(static_cast<std::int32_t>(i));
  // At least one multiple, since heads need rows.
  const std::int64_t count =
      std::max<std::int64_t>((std::ssize(rows) + granularity - 1) / granularity, 1) * granularity;
  rows.resize(static_cast<std::size_t>(count), -1);
  Tensor made = Tensor::empty({count}, DType::i32, memory, MemoryTag::data);
  std::copy(rows.begin(), rows.end(), made.data<std::int32_t>());
  return made;
}

VisibleRows visible_rows(const Tensor& lengths, std::int64_t length, std::int64_t granularity,
                         MemoryResource& memory) {
  SHOAL_CHECK(lengths.dtype() == DType::i32 && lengths.shape().rank() == 1 &&
                  lengths.device().is_cpu() && granularity > 0,
              "visible rows of lengths {} {} on {}, in multiples of {}", to_string(lengths.dtype()),
              to_string(lengths.shape()), to_string(lengths.device()), granularity);
  const std::int64_t samples = lengths.count();
  std::vector<std::int32_t> rows;
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const std::int32_t visible = lengths.const_data<std::int32_t>()[sample];
    SHOAL_CHECK(visible >= 0 && visible <= length, "sample {} has {} visible positions of {}",
                sample, visible, length);
    for (std::int32_t i = 0; i < std::max(visible, 1); ++i)
      rows.push_back(static_cast<std::int32_t>(sample * length) + i);
  }
  const std::int64_t visible = std::ssize(rows);
  const std::int64_t count =
      std::max<std::int64_t>((visible + granularity - 1) / granularity, 1) * granularity;
  if (8 * count > 7 * samples * length) return {};
  VisibleRows made{Tensor::empty({count}, DType::i32, memory, MemoryTag::data),
                   Tensor::empty({samples, length}, DType::i32, memory, MemoryTag::data)};
  auto* const places = made.places.data<std::int32_t>();
  std::fill(places, places + made.places.count(), -1);
  for (std::int64_t i = 0; i < visible; ++i)
    places[rows[static_cast<std::size_t>(i)]] = static_cast<std::int32_t>(i);
  rows.resize(static_cast<std::size_t>(count), -1);
  std::copy(rows.begin(), rows.end(), made.rows.data<std::int32_t>());
  return made;
}

std::vector<std::int64_t> Chain::lengths(int /*unit*/, const ChainInput& input) const {
  return {input.ids.shape()[1]};
}

std::vector<Parameter*> Chain::unit_parameters(int unit) const {
  std::vector<Parameter*> all;
  for (const Module* module : unit_modules(unit))
    for (Parameter* parameter : module->parameters())
      if (std::find(all.begin(), all.end(), parameter) == all.end()) all.push_back(parameter);
  return all;
}

namespace {

// Recorded after the unit's operations, so backward walks it first. Passes the gradients through.
class UnitEnd final : public Function {
 public:
  UnitEnd(UnitObserver& observer, int unit, int next, std::shared_ptr<bool> entered)
      : observer_(observer), unit_(unit), next_(next), entered_(std::move(entered)) {}
  std::string_view name() const override { return "unit"; }
  std::vector<Tensor> backward(BackwardContext&, std::span<Tensor> output_gradients) override {
    *entered_ = true;
    observer_.before_backward(unit_, next_);
    return {std::make_move_iterator(output_gradients.begin()),
            std::make_move_iterator(output_gradients.end())};
  }

 private:
  UnitObserver& observer_;
  int unit_, next_;
  std::shared_ptr<bool> entered_;
};

// Recorded before the unit's operations. The first unit's input has no gradient, so this Function
// is never called; its destruction shows that the unit has been walked.
class UnitBegin final : public Function {
 public:
  UnitBegin(UnitObserver& observer, int unit, std::shared_ptr<bool> entered)
      : observer_(observer), unit_(unit), entered_(std::move(entered)) {}
  ~UnitBegin() override {
    if (*entered_) observer_.after_backward(unit_);
  }
  UnitBegin(const UnitBegin&) = delete;
  UnitBegin& operator=(const UnitBegin&) = delete;
  std::string_view name() const override { return "unit"; }
  std::vector<Tensor> backward(BackwardContext&, std::span<Tensor>) override { return {}; }

 private:
  UnitObserver& observer_;
  int unit_;
  std::shared_ptr<bool> entered_;
};

// Notifies the observer around one unit's forward. Without an observer it does nothing.
class ObservedUnit {
 public:
  ObservedUnit(Context& context, UnitObserver* observer, int unit, int next, int next_in_backward)
      : tape_(observer ? context.tape : nullptr),
        observer_(observer),
        unit_(unit),
        next_in_backward_(next_in_backward) {
    if (!observer_) return;
    if (tape_) {
      entered_ = std::make_shared<bool>(false);
      (void)tape_->record(std::make_unique<UnitBegin>(*observer_, unit_, entered_), {}, {}, {});
    }
    observer_->before_forward(unit_, next);
  }
  ~ObservedUnit() {
    if (observer_) observer_->after_forward(unit_);
  }
  ObservedUnit(const ObservedUnit&) = delete;
  ObservedUnit& operator=(const ObservedUnit&) = delete;

  // Marks the unit's outputs that need a gradient.
  void end(std::initializer_list<Value*> outputs) {
    if (!tape_) return;
    std::vector<Value> values;
    std::vector<Tensor> tensors;
    for (Value* output : outputs) {
      if (!output || !output->needs_gradient()) continue;
      tensors.push_back(std::move(output->tensor));
      values.push_back(*output);
    }
    if (values.empty()) return;
    values = tape_->record(
        std::make_unique<UnitEnd>(*observer_, unit_, next_in_backward_, std::move(entered_)),
        values, {}, std::move(tensors));
    auto value = values.begin();
    for (Value* output : outputs)
      if (output && output->needs_gradient()) *output = std::move(*value++);
  }

 private:
  Tape* tape_;
  UnitObserver* observer_;
  int unit_, next_in_backward_;
  std::shared_ptr<bool> entered_;
};

// The unit that backward needs after `unit`: the previous one, or the first unit of the previous
// checkpoint group, which is recomputed; -1: none.
int before_in_backward(int unit, int first, int group) {
  if (unit <= first) return -1;
  const int start = std::max(first, 1);  // start of the first checkpoint group
  if (group <= 0 || unit <= start) return unit - 1;
  if ((unit - start) % group != 0) return unit - 1;  // within its group
  return unit - group;
}

ResidualStream forward_one(Context& context, Chain& chain, int unit, ResidualStream stream,
                           const ChainInput& input, UnitObserver* observer, int next,
                           int next_in_backward) {
  ObservedUnit observed(context, observer, unit, next, next_in_backward);
  stream = chain.forward_unit(context, unit, std::move(stream), input);
  observed.end({&stream.residual, stream.branch ? &*stream.branch : nullptr,
                stream.encoded ? &*stream.encoded : nullptr});
  return stream;
}

}  // namespace

ResidualStream forward_units(Context& context, Chain& chain, int first, int last,
                             ResidualStream stream, const ChainInput& input, int checkpoint_group,
                             UnitObserver* observer) {
  SHOAL_CHECK(0 <= first && first <= last && last < chain.units(),
              "units [{}, {}) of a chain of {}, whose last is the head", first, last,
              chain.units());
  first = std::max(first, std::min(chain.first_unit(input), last));
  // The next unit; the head follows the last block.
  const auto after = [&chain, last](int unit) {
    return unit + 1 < last || last == chain.units() - 1 ? unit + 1 : -1;
  };
  for (int unit = first; unit < last;) {
    if (unit == 0 || checkpoint_group <= 0 || !context.tape) {
      stream = forward_one(context, chain, unit, std::move(stream), input, observer, after(unit),
                           before_in_backward(unit, first, checkpoint_group));
      ++unit;
      continue;
    }
    const int end = std::min(unit + checkpoint_group, last);
    const std::vector<Value> inputs = std::move(stream).carried(context);
    const auto run = [&chain, unit, end, input, observer, first, checkpoint_group,
                      next_group = after(end - 1)](Context& inner, std::span<const Value> values) {
      ResidualStream inside = ResidualStream::of({values.begin(), values.end()});
      for (int u = unit; u < end; ++u) {
        // After a recomputation, backward walks the last unit at once, so no forward follows.
        const int next = u + 1 < end ? u + 1 : inner.tape ? -1 : next_group;
        inside = forward_one(inner, chain, u, std::move(inside), input, observer, next,
                             before_in_backward(u, first, checkpoint_group));
      }
      return std::move(inside).carried(inner);
    };
    stream = ResidualStream::of(checkpoint(context, run, inputs));
    unit = end;
  }
  return stream;
}

LossOutput forward_head(Context& context, Chain& chain, int first, ResidualStream stream,
                        const ChainInput& input, int checkpoint_group, UnitObserver* observer) {
  const int head = chain.units() - 1;
  int before = head > first ? head - 1 : -1;
  const int start = std::max(first, 1);
  if (checkpoint_group > 0 && before >= start)
    before = start + (before - start) / checkpoint_group * checkpoint_group;
  ObservedUnit observed(context, observer, head, -1, before);
  LossOutput out = chain.forward_head(context, std::move(stream), input);
  observed.end({&out.loss});
  return out;
}

ScoredOutput score_head(Context& context, Chain& chain, ResidualStream stream,
                        const ChainInput& input, UnitObserver* observer) {
  SHOAL_CHECK(!context.tape && !context.training(), "scores are of evaluation");
  const ObservedUnit observed(context, observer, chain.units() - 1, -1, -1);
  ScoredOutput out;
  if (!input.decoding) out.loss = chain.forward_head(context, stream, input);
  out.logits = chain.head_logits(context, std::move(stream), input);
  return out;
}

}  // namespace shoal::nn
