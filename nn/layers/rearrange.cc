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

}  // namespace

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
