#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/convert.h"
#include "shoal/kernels/reference/access.h"
#include "shoal/kernels/reference/activation.h"
#include "shoal/kernels/reference/dropout.h"
#include "shoal/kernels/reference/families.h"

namespace shoal::kernels {
namespace {

using reference::load;
using reference::store;

class ReferenceElementwise final : public ElementwiseKernels {
 public:
  void add(ConstView a, ConstView b, View out, Stream) override {
    check::same("add", a, b);
    check::same("add", a, out);
    for (std::int64_t i = 0; i < out.shape.count(); ++i) store(out, i, load(a, i) + load(b, i));
  }

  void multiply(ConstView a, ConstView b, View out, Stream) override {
    check::same("multiply", a, b);
    check::same("multiply", a, out);
    for (std::int64_t i = 0; i < out.shape.count(); ++i) store(out, i, load(a, i) * load(b, i));
  }

  void scale(ConstView x, float factor, View out, Stream) override {
    check::same("scale", x, out);
    for (std::int64_t i = 0; i < out.shape.count(); ++i) store(out, i, load(x, i) * factor);
  }

  void axpy(float alpha, ConstView x, View y, Stream) override {
    check::same("axpy", x, y);
    for (std::int64_t i = 0; i < y.shape.count(); ++i)
      store(y, i, load(y, i) + static_cast<double>(alpha) * load(x, i));
  }

  void cast(ConstView x, View out, Stream) override {
    check::shape("cast", "out", out, x.shape);
    convert_elements(x.dtype, x.data, out.dtype, out.data, x.shape.count());
  }

  void transpose(ConstView x, View out, Stream) override {
    check::transpose(x, out);
    const auto bytes = static_cast<std::int64_t>(size_of(x.dtype));
    const std::int64_t rows = x.shape[-2], columns = x.shape[-1];
    for (std::int64_t m = 0; m < check::matrices(x) * rows * columns; m += rows * columns)
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < columns; ++j)
          std::memcpy(static_cast<std::byte*>(out.data) + (m + j * rows + i) * bytes,
                      static_cast<const std::byte*>(x.data) + (m + i * columns + j) * bytes,
                      size_of(x.dtype));
  }

  void add_bias(ConstView x, ConstView bias, View out, Stream) override {
    check::add_bias(x, bias, out);
    const std::int64_t columns = x.shape.columns();
    for (std::int64_t i = 0; i < x.shape.count(); ++i)
      store(out, i, load(x, i) + load(bias, i % columns));
  }

  void activation(Activation kind, ConstView x, View out, Stream) override {
    check::same("activation", x, out);
    for (std::int64_t i = 0; i < x.shape.count(); ++i)
      store(out, i, reference::activation(kind, load(x, i)));
  }

  void activation_backward(Activation kind, ConstView x, ConstView dy, View dx, Stream) override {
    check::same("activation_backward", x, dy);
    check::same("activation_backward", x, dx);
    for (std::int64_t i = 0; i < x.shape.count(); ++i)
      store(dx, i, load(dy, i) * reference::activation_derivative(kind, load(x, i)));
  }

  void swiglu(ConstView gate, ConstView up, View out, Stream) override {
    check::same("swiglu", gate, up);
    check::same("swiglu", gate, out);
    for (std::int64_t i = 0; i < gate.shape.count(); ++i) {
      const double x = load(gate, i);
      store(out, i, x / (1 + std::exp(-x)) * load(up, i));
    }
  }

  void swiglu_backward(ConstView gate, ConstView up, ConstView dout, View dgate, View dup,
                       Stream) override {
    for (const ConstView& other : {up, dout, ConstView(dgate), ConstView(dup)})
      check::same("swiglu_backward", gate, other);
    for (std::int64_t i = 0; i < gate.shape.count(); ++i) {
      const double x = load(gate, i), s = 1 / (1 + std::exp(-x)), d = load(dout, i);
      const double gradient = d * load(up, i) * s * (1 + x * (1 - s));
      store(dgate, i, gradient);
      store(dup, i, d * x * s);
    }
  }

  void dropout(const DropoutArgs& args, ConstView x, View out, Stream) override {
    check::same("dropout", x, out);
    check::dropout("dropout", args, x);
    for (std::int64_t i = 0; i < x.shape.count(); ++i)
      store(out, i, reference::dropped(args, x.shape.columns(), i, load(x, i)));
  }

  void dropout_add(const DropoutArgs& args, ConstView x, ConstView residual, View out,
                   Stream) override {
    check::same("dropout_add", x, residual);
    check::same("dropout_add", x, out);
    check::dropout("dropout_add", args, x);
    for (std::int64_t i = 0; i < x.shape.count(); ++i)
      store(out, i, load(residual, i) + reference::dropped(args, x.shape.columns(), i, load(x, i)));
  }

  void fill_normal(View out, float mean, float std, const RandomSite& site,
                   std::uint64_t first_element, Stream) override {
    check::fill("fill_normal", out);
    for (std::int64_t i = 0; i < out.shape.count(); ++i) {
      const std::uint64_t element = first_element + static_cast<std::uint64_t>(i);
      const std::uint64_t even = element & ~std::uint64_t{1};
      const double u =
          static_cast<float>((random_bits(site, site.sample_first, even) + 0.5) * 0x1p-32);
      const double angle =
          2 * std::numbers::pi *
          static_cast<double>(uniform(random_bits(site, site.sample_first, even + 1)));
      const double radius = std::sqrt(-2 * std::log(u));
      store(out, i, mean + std * radius * (element == even ? std::cos(angle) : std::sin(angle)));
    }
  }

  void fill_uniform(View out, float low, float high, const RandomSite& site,
                    std::uint64_t first_element, Stream) override {
    check::fill("fill_uniform", out);
    for (std::int64_t i = 0; i < out.shape.count(); ++i) {
      const float u = uniform(
          random_bits(site, site.sample_first, first_element + static_cast<std::uint64_t>(i)));
      // Computed in f32, so that `high` is excluded as in the other implementations.
      static_cast<float*>(out.data)[i] = low + (high - low) * u;
    }
  }

  void fill(View out, float value, Stream) override {
    check::training_float("fill", "out", out);
    for (std::int64_t i = 0; i < out.shape.count(); ++i) store(out, i, value);
  }
};

}  // namespace

std::unique_ptr<ElementwiseKernels> make_reference_elementwise() {
  return std::make_unique<ReferenceElementwise>();
}

}  // namespace shoal::kernels
