#include "shoal/kernels/checks.h"
#include "shoal/nn/layers/functional.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Sample by sample: [T, C] -> [C, T].
Tensor transposed(Context& context, const Tensor& x) {
  const Shape& in = x.shape();
  const Tensor y = context.empty({in[0], in[2], in[1]}, x.dtype());
  context.run("transpose_samples", {x}, {y}, [&] {
    for (std::int64_t b = 0; b < in[0]; ++b)
      context.kernels().elementwise().transpose(x.narrowed(0, b, 1).reshaped({in[1], in[2]}),
                                                y.narrowed(0, b, 1).reshaped({in[2], in[1]}).view(),
                                                context.stream);
  });
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

class FirstPositionFunction final : public Function {
 public:
  explicit FirstPositionFunction(const Shape& shape) : shape_(shape) {}
  std::string_view name() const override { return "first_position"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    const Tensor& dy = output_gradients[0];
    const Tensor dx = context.empty(shape_, dy.dtype());
    context.run("first_position.backward", {dy}, {dx}, [&] {
      auto& elementwise = context.kernels().elementwise();
      elementwise.fill(dx.view(), 0, context.stream);
      for (std::int64_t b = 0; b < shape_[0]; ++b)
        elementwise.cast(dy.narrowed(0, b, 1).reshaped({shape_[2]}),
                         dx.narrowed(0, b, 1).narrowed(1, 0, 1).reshaped({shape_[2]}).view(),
                         context.stream);
    });
    return {dx};
  }

 private:
  Shape shape_;
};

// Scatters through a table's gradient, which is f32.
class PositionsAtFunction final : public Function {
 public:
  PositionsAtFunction(Tape& tape, const Shape& shape, const Tensor& positions)
      : shape_(shape), positions_(tape, positions) {}
  std::string_view name() const override { return "positions_at"; }
  std::vector<Tensor> backward(BackwardContext& backward_context,
                               std::span<Tensor> output_gradients) override {
    Context& context = backward_context.context();
    const Tensor& dy = output_gradients[0];
    const Tensor positions = positions_.get(name());
    const Tensor dx = context.empty(shape_, dy.dtype());
    const Shape sample = {shape_[1], shape_[2]};
    Tensor sums;
    if (dy.dtype() != DType::f32) sums = context.empty(sample, DType::f32, MemoryTag::workspace);
    context.run("positions_at.backward", {positions, dy}, {dx, sums}, [&] {
      auto& elementwise = context.kernels().elementwise();
      elementwise.fill(dx.view(), 0, context.stream);
      for (std::int64_t b = 0; b < shape_[0]; ++b) {
        const Tensor to = dx.narrowed(0, b, 1).reshaped(sample);
        const Tensor& table = sums.defined() ? sums : to;
        if (sums.defined()) elementwise.fill(sums.view(), 0, context.stream);
        context.kernels().embedding().embedding_backward(
            positions.narrowed(0, b, 1), dy.narrowed(0, b, 1), table.view(), context.stream);
        if (sums.defined()) elementwise.cast(sums, to.view(), context.stream);
      }
    });
    return {dx};
  }

 private:
  Shape shape_;
  SavedTensor positions_;
};

}  // namespace

Value positions_at(Context& context, const Value& x, const Tensor& given) {
  const Shape shape = x.tensor.shape();
  SHOAL_CHECK(shape.rank() == 3 && given.dtype() == DType::i32 && given.shape() == Shape{shape[0]},
              "positions {} {} of {}, not i32 [B] of [B, T, C]", to_string(given.dtype()),
              to_string(given.shape()), to_string(shape));
  // Kernels of a device could only complain later.
  if (given.device().is_cpu()) kernels::check::ids("positions_at", given, shape[1]);
  const Tensor positions = context.to_device(given);
  const bool records = context.records({&x, 1}, {});
  const Tensor y = context.empty({shape[0], shape[2]}, x.tensor.dtype());
  context.run("positions_at", {positions, x.tensor}, {y}, [&] {
    for (std::int64_t b = 0; b < shape[0]; ++b)
      context.kernels().embedding().embedding(
          positions.narrowed(0, b, 1), x.tensor.narrowed(0, b, 1).reshaped({shape[1], shape[2]}),
          y.narrowed(0, b, 1).view(), false, context.stream);
  });
  if (!records) return Value{y};
  Tape& tape = *context.tape;
  return tape.record(std::make_unique<PositionsAtFunction>(tape, shape, positions), {&x, 1}, {},
                     {y})[0];
}

Value first_position(Context& context, const Value& x) {
  const Shape shape = x.tensor.shape();
  SHOAL_CHECK(shape.rank() == 3 && shape[1] > 0, "first_position of {}, not [B, T > 0, C]",
              to_string(shape));
  const bool records = context.records({&x, 1}, {});
  const Tensor y = context.empty({shape[0], shape[2]}, x.tensor.dtype());
  context.run("first_position", {x.tensor}, {y}, [&] {
    for (std::int64_t b = 0; b < shape[0]; ++b)
      context.kernels().elementwise().cast(
          x.tensor.narrowed(0, b, 1).narrowed(1, 0, 1).reshaped({shape[2]}),
          y.narrowed(0, b, 1).reshaped({shape[2]}).view(), context.stream);
  });
  if (!records) return Value{y};
  return context.tape->record(std::make_unique<FirstPositionFunction>(shape), {&x, 1}, {}, {y})[0];
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
