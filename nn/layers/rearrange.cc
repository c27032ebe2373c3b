#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "shoal/kernels/checks.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/layers/functional_internal.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// [T, C] -> [C, T] for each sample.
Tensor transposed(Context& context, const Tensor& x) {
  const Shape& in = x.shape();
  const Tensor y = context.empty({in[0], in[2], in[1]}, x.dtype());
  context.run("transpose_samples", {x}, {y},
              [&] { context.kernels().elementwise().transpose(x, y.view(), context.stream); });
  return y;
}

class TransposeFunction final : public Function {
 public:
  std::string_view name() const override { return "transpose_samples"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    return {transposed(backward_context.context(), output_gradients[0])};
  }
};

kernels::RowSelection selection(const Tensor& numbers, std::int64_t stride, std::int64_t offset) {
  kernels::RowSelection rows{.numbers = {}, .stride = stride, .offset = offset};
  if (numbers.defined()) rows.numbers = numbers;
  return rows;
}

class RowsFunction final : public Function {
 public:
  RowsFunction(Tape& tape, std::string_view name, const Shape& shape, const Tensor& numbers,
               std::int64_t stride, std::int64_t offset)
      : name_(name), shape_(shape), numbers_(tape, numbers), stride_(stride), offset_(offset) {}
  std::string_view name() const override { return name_; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    const Tensor& dy = output_gradients[0];
    Tensor numbers;
    if (numbers_.defined()) numbers = numbers_.get(name());
    const Tensor dx = context.empty(shape_, dy.dtype());
    context.run("rows.backward", {numbers, dy}, {dx}, [&] {
      context.kernels().embedding().select_rows_backward(
          selection(numbers, stride_, offset_), dy.reshaped({dy.shape().rows(), dy.shape()[-1]}),
          dx.view(), true, context.stream);
    });
    return {dx};
  }

 private:
  std::string_view name_;  // static storage
  Shape shape_;
  SavedTensor numbers_;
  std::int64_t stride_, offset_;
};

// Selects rows of x [.., C] as the rows of `shape`.
Value rows_of(Context& context, std::string_view name, const Value& x, const Shape& shape,
              const Tensor& numbers, std::int64_t stride, std::int64_t offset) {
  const bool records = context.records({&x, 1}, {});
  const Tensor y = context.empty(shape, x.tensor.dtype());
  context.run(name, {numbers, x.tensor}, {y}, [&] {
    context.kernels().embedding().select_rows(selection(numbers, stride, offset), x.tensor,
                                              y.reshaped({shape.rows(), shape.columns()}).view(), 0,
                                              context.stream);
  });
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(
      std::make_unique<RowsFunction>(tape, name, x.tensor.shape(), numbers, stride, offset),
      {&x, 1}, {}, {y})[0];
}

// For Context::run(): undefined beyond the last one.
Tensor or_none(std::span<const Tensor> all, std::size_t i) {
  return i < all.size() ? all[i] : Tensor();
}

// Rows of x are pieces of D channels, of which every n-th belongs to one of n parts.
class SplitChannelsFunction final : public Function {
 public:
  SplitChannelsFunction(const Shape& shape, std::int64_t channels)
      : shape_(shape), channels_(channels) {}
  std::string_view name() const override { return "split_channels"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    const auto given = std::ranges::find_if(output_gradients, &Tensor::defined);
    const Tensor dx = context.empty(shape_, given->dtype());
    const Tensor rows = dx.reshaped({shape_.count() / channels_, channels_});
    const auto parts = static_cast<std::int64_t>(output_gradients.size());
    const auto listed = [&](std::size_t i) { return or_none(output_gradients, i); };
    context.run("split_channels.backward", {listed(0), listed(1), listed(2)}, {dx}, [&] {
      bool clear = !std::ranges::all_of(output_gradients, &Tensor::defined);
      for (std::int64_t part = 0; part < parts; ++part) {
        const Tensor& dy = output_gradients[static_cast<std::size_t>(part)];
        if (!dy.defined()) continue;
        context.kernels().embedding().select_rows_backward(
            selection({}, parts, part), dy.reshaped({dy.count() / channels_, channels_}),
            rows.view(), clear, context.stream);
        clear = false;
      }
    });
    return {dx};
  }

 private:
  Shape shape_;
  std::int64_t channels_;
};

// Checks row numbers on the host and moves them to the kernels' device. Device kernels could report
// errors only later.
Tensor numbers_of(Context& context, const Tensor& given, std::int64_t limit) {
  SHOAL_CHECK(given.dtype() == DType::i32 && given.shape().rank() == 1,
              "numbers of rows are {} {}, not i32 [n]", to_string(given.dtype()),
              to_string(given.shape()));
  if (given.device().is_cpu())
    for (std::int64_t i = 0; i < given.count(); ++i)
      SHOAL_CHECK(given.const_data<std::int32_t>()[i] < limit, "row {} of {}, number {}",
                  given.const_data<std::int32_t>()[i], limit, i);
  return context.to_device(given);
}

}  // namespace

Value positions_at(Context& context, const Value& x, const Tensor& given) {
  const Shape& shape = x.tensor.shape();
  SHOAL_CHECK(shape.rank() == 3 && given.dtype() == DType::i32 && given.shape() == Shape{shape[0]},
              "positions {} {} of {}, not i32 [B] of [B, T, C]", to_string(given.dtype()),
              to_string(given.shape()), to_string(shape));
  // Check on the host, since device kernels can only report errors later.
  if (given.device().is_cpu()) kernels::check::ids("positions_at", given, shape[1]);
  return rows_of(context, "positions_at", x, {shape[0], shape[2]}, context.to_device(given),
                 shape[1], 0);
}

Value position_of_all(Context& context, const Value& x, std::int64_t position) {
  const Shape& shape = x.tensor.shape();
  SHOAL_CHECK(shape.rank() == 3 && position >= 0 && position < shape[1],
              "position {} of {}, which is not [B, T > {}, C]", position, to_string(shape),
              position);
  return rows_of(context, "position_of_all", x, {shape[0], shape[2]}, {}, shape[1], position);
}

std::vector<Value> split_channels(Context& context, const Value& x, int parts,
                                  std::int64_t groups) {
  const Shape& shape = x.tensor.shape();
  SHOAL_CHECK(shape.rank() > 0 && parts > 0 && parts <= 3 && groups > 0 &&
                  shape[-1] % (parts * groups) == 0,
              "{} parts of {} groups of channels in {}", parts, groups, to_string(shape));
  const std::int64_t channels = shape[-1] / (parts * groups);
  const Shape part = shape.with(-1, shape[-1] / parts);
  const std::int64_t count = channels == 0 ? 0 : part.count() / channels;
  const Tensor rows = x.tensor.reshaped({parts * count, channels});
  std::vector<Tensor> made;
  for (int i = 0; i < parts; ++i) made.push_back(context.empty(part, x.tensor.dtype()));
  const bool records = context.records({&x, 1}, {});
  const auto listed = [&](std::size_t i) { return or_none(made, i); };
  context.run("split_channels", {x.tensor}, {listed(0), listed(1), listed(2)}, [&] {
    for (int i = 0; i < parts; ++i)
      context.kernels().embedding().select_rows(
          selection({}, parts, i), rows,
          made[static_cast<std::size_t>(i)].reshaped({count, channels}).view(), 0, context.stream);
  });
  if (records)
    return context.tape->record(std::make_unique<SplitChannelsFunction>(shape, channels), {&x, 1},
                                {}, std::move(made));
  std::vector<Value> values;
  for (Tensor& tensor : made) values.push_back(Value{std::move(tensor)});
  return values;
}

Value gated_halves(Context& context, const Value& x, kernels::Activation activation) {
  const std::vector<Value> halves = split_channels(context, x, 2);
  return multiply(context, activate(context, halves[0], activation), halves[1]);
}

Value rows_at(Context& context, const Value& x, const Tensor& given) {
  const Tensor numbers = numbers_of(context, given, x.tensor.shape().rows());
  return rows_of(context, "rows_at", x, {numbers.count(), x.tensor.shape().columns()}, numbers, 0,
                 0);
}

Value spread(Context& context, const Value& x, const VisibleRows& visible) {
  if (!visible.defined()) return x;
  const Shape &in = x.tensor.shape(), &places = visible.places.shape();
  const Tensor numbers = numbers_of(context, visible.places.reshaped({places.count()}), in.rows());
  return rows_of(context, "spread", x, {places[0], places[1], in.columns()}, numbers, 0, 0);
}

Value without_padding(Context& context, const Value& x, const VisibleRows& visible) {
  return visible.defined() ? rows_at(context, x, visible.rows) : x;
}

Tensor targets_at(Context& context, const Tensor& given, const Tensor& given_numbers) {
  const Tensor numbers = numbers_of(context, given_numbers, given.count()),
               targets = context.to_device(given),
               some = context.empty({numbers.count()}, DType::i32);
  context.run("targets_at", {numbers, targets}, {some}, [&] {
    context.kernels().embedding().select_rows(
        selection(numbers, 0, 0), targets.reshaped({targets.count(), 1}),
        some.reshaped({some.count(), 1}).view(), 0xff, context.stream);
  });
  return some;
}

Value transpose_samples(Context& context, const Value& x) {
  SHOAL_CHECK(x.tensor.shape().rank() == 3, "transpose_samples of {}, not [B, T, C]",
              to_string(x.tensor.shape()));
  const bool records = context.records({&x, 1}, {});
  const Tensor y = transposed(context, x.tensor);
  if (!records) return Value{y};
  return context.tape->record(std::make_unique<TransposeFunction>(), {&x, 1}, {}, {y})[0];
}

}  // namespace shoal::nn
