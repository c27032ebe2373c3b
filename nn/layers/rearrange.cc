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
      context.kernels().embedding().select_rows_backward(selection(numbers, stride_, offset_), dy,
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

// Selects `count` rows of x [.., C].
Value rows_of(Context& context, std::string_view name, const Value& x, std::int64_t count,
              const Tensor& numbers, std::int64_t stride, std::int64_t offset) {
  const bool records = context.records({&x, 1}, {});
  const Tensor y = context.empty({count, x.tensor.shape().columns()}, x.tensor.dtype());
  context.run(name, {numbers, x.tensor}, {y}, [&] {
    context.kernels().embedding().select_rows(selection(numbers, stride, offset), x.tensor,
                                              y.view(), 0, context.stream);
  });
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(
      std::make_unique<RowsFunction>(tape, name, x.tensor.shape(), numbers, stride, offset),
      {&x, 1}, {}, {y})[0];
}

// Rows of D channels, of which every third belongs to part 0, 1 or 2.
class SplitHeadsFunction final : public Function {
 public:
  SplitHeadsFunction(const Shape& shape, std::int64_t channels)
      : shape_(shape), channels_(channels) {}
  std::string_view name() const override { return "split_heads"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    const Tensor &dq = output_gradients[0], &dk = output_gradients[1], &dv = output_gradients[2];
    const Tensor& given = dq.defined() ? dq : dk.defined() ? dk : dv;
    const Tensor dx = context.empty(shape_, given.dtype());
    const Tensor rows = dx.reshaped({shape_.count() / channels_, channels_});
    context.run("split_heads.backward", {dq, dk, dv}, {dx}, [&] {
      bool clear = !dq.defined() || !dk.defined() || !dv.defined();
      std::int64_t part = 0;
      for (const Tensor& dy : {dq, dk, dv}) {
        const kernels::RowSelection own = selection({}, 3, part++);
        if (!dy.defined()) continue;
        context.kernels().embedding().select_rows_backward(
            own, dy.reshaped({dy.count() / channels_, channels_}), rows.view(), clear,
            context.stream);
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
  return rows_of(context, "positions_at", x, shape[0], context.to_device(given), shape[1], 0);
}

Value position_of_all(Context& context, const Value& x, std::int64_t position) {
  const Shape& shape = x.tensor.shape();
  SHOAL_CHECK(shape.rank() == 3 && position >= 0 && position < shape[1],
              "position {} of {}, which is not [B, T > {}, C]", position, to_string(shape),
              position);
  return rows_of(context, "position_of_all", x, shape[0], {}, shape[1], position);
}

std::array<Value, 3> split_heads(Context& context, const Value& x, std::int64_t heads) {
  const Shape& shape = x.tensor.shape();
  SHOAL_CHECK(shape.rank() > 0 && heads > 0 && shape[-1] % (3 * heads) == 0,
              "queries, keys and values of {} heads in {}", heads, to_string(shape));
  const std::int64_t channels = shape[-1] / (3 * heads);
  std::vector<std::int64_t> sizes(shape.sizes().begin(), shape.sizes().end());
  sizes.back() /= 3;
  const Shape part{std::span<const std::int64_t>(sizes)};
  const std::int64_t count = channels == 0 ? 0 : part.count() / channels;
  const Tensor rows = x.tensor.reshaped({3 * count, channels});
  std::vector<Tensor> parts;
  for (int i = 0; i < 3; ++i) parts.push_back(context.empty(part, x.tensor.dtype()));
  const bool records = context.records({&x, 1}, {});
  context.run("split_heads", {x.tensor}, {parts[0], parts[1], parts[2]}, [&] {
    for (int i = 0; i < 3; ++i)
      context.kernels().embedding().select_rows(
          selection({}, 3, i), rows,
          parts[static_cast<std::size_t>(i)].reshaped({count, channels}).view(), 0, context.stream);
  });
  if (!records) return {Value{parts[0]}, Value{parts[1]}, Value{parts[2]}};
  auto values = context.tape->record(std::make_unique<SplitHeadsFunction>(shape, channels), {&x, 1},
                                     {}, std::move(parts));
  return {std::move(values[0]), std::move(values[1]), std::move(values[2])};
}

Value rows_at(Context& context, const Value& x, const Tensor& given) {
  const Tensor numbers = numbers_of(context, given, x.tensor.shape().rows());
  return rows_of(context, "rows_at", x, numbers.count(), numbers, 0, 0);
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
