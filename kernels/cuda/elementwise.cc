#include "shoal/kernels/cuda/elementwise.cuh"

#include "shoal/kernels/checks.h"
#include "shoal/kernels/convert.h"
#include "shoal/kernels/cuda/dropout.h"
#include "shoal/kernels/cuda/families.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

bool is_training(DType dtype) { return is_floating(dtype) && dtype != DType::f64; }
std::size_t bytes_of(const ConstView& view) {
  return static_cast<std::size_t>(view.shape.count()) * size_of(view.dtype);
}

// Kernels can access pinned host memory, but not pageable memory.
enum class Place { device, pinned, pageable };

// A view marked as host memory may still point into device memory, since bare pointers carry no
// device.
Place place_of(const ConstView& view) {
  if (!view.device.is_cpu()) return Place::device;
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, view.data), "cast: asking where memory is");
  if (attributes.type == cudaMemoryTypeUnregistered) return Place::pageable;
  return attributes.type == cudaMemoryTypeHost ? Place::pinned : Place::device;
}

Curve curve_of(Activation kind) {
  switch (kind) {
    case Activation::gelu_tanh:
      return Curve::gelu_tanh;
    case Activation::gelu_erf:
      return Curve::gelu_erf;
    case Activation::tanh:
      return Curve::tanh;
    case Activation::relu:
      return Curve::relu;
    case Activation::none:
      break;
  }
  SHOAL_ASSERT(false);
}

class CudaElementwise final : public ElementwiseKernels {
 public:
  explicit CudaElementwise(CudaResources& resources) : resources_(resources) {}

  void add(ConstView a, ConstView b, View out, Stream stream) override {
    check::same("add", a, b);
    check::same("add", a, out);
    check_cuda(launch_axpy(begin(stream), a.dtype, 1, a.data, b.data, out.data, a.shape.count()),
               "add");
  }

  void multiply(ConstView a, ConstView b, View out, Stream stream) override {
    check::same("multiply", a, b);
    check::same("multiply", a, out);
    check_cuda(launch_multiply(begin(stream), a.dtype, a.data, b.data, out.data, a.shape.count()),
               "multiply");
  }

  void scale(ConstView x, float factor, View out, Stream stream) override {
    check::same("scale", x, out);
    check_cuda(
        launch_scale(begin(stream), x.dtype, x.dtype, factor, x.data, out.data, x.shape.count()),
        "scale");
  }

  void axpy(float alpha, ConstView x, View y, Stream stream) override {
    check::same("axpy", x, y);
    check_cuda(launch_axpy(begin(stream), x.dtype, alpha, x.data, y.data, y.data, x.shape.count()),
               "axpy");
  }

  // Either view may be in host memory. With pageable memory, the call blocks until it has been read
  // or written. Pinned memory is accessed in stream order, like device memory.
  void cast(ConstView x, View out, Stream stream) override {
    check::shape("cast", "out", out, x.shape);
    const Launch at = begin(stream);
    const std::int64_t count = x.shape.count();
    if (count == 0 || (x.data == out.data && x.dtype == out.dtype)) return;
    const Place from = place_of(x), to = place_of(out);
    const bool same = x.dtype == out.dtype, via_host = from != Place::device && to != Place::device;
    if (via_host && (from == Place::pageable || to == Place::pageable)) {
      resources_.wait_for(at.stream);
      convert_elements(x.dtype, x.data, out.dtype, out.data, count);
    } else if (same && !via_host) {
      copy(at, out.data, x.data, bytes_of(x));
    } else if (from == Place::pageable) {
      const Buffer staged = resources_.scratch(bytes_of(x), stream);
      copy(at, staged.data(), x.data, bytes_of(x));
      convert(at, x.dtype, staged.data(), out.dtype, out.data, count);
    } else if (to == Place::pageable ||
               (x.data == out.data && size_of(x.dtype) != size_of(out.dtype))) {
      const Buffer staged = resources_.scratch(bytes_of(out), stream);
      convert(at, x.dtype, x.data, out.dtype, staged.data(), count);
      copy(at, out.data, staged.data(), bytes_of(out));
    } else {
      convert(at, x.dtype, x.data, out.dtype, out.data, count);
    }
  }

  void transpose(ConstView x, View out, Stream stream) override {
    check::transpose(x, out);
    SHOAL_CHECK(x.data != out.data || x.shape.count() <= 1, "transpose: not in place");
    check_cuda(launch_transpose(begin(stream), size_of(x.dtype), x.data, out.data,
                                check::matrices(x), x.shape[-2], x.shape[-1]),
               "transpose");
  }

  void add_bias(ConstView x, ConstView bias, View out, Stream stream) override {
    check::add_bias(x, bias, out);
    check_cuda(launch_add_bias(begin(stream), x.dtype, bias.dtype, x.data, bias.data, out.data,
                               x.shape.rows(), x.shape.columns()),
               "add_bias");
  }

  void activation(Activation kind, ConstView x, View out, Stream stream) override {
    check::same("activation", x, out);
    if (kind == Activation::none) return cast(x, out, stream);
    check_cuda(launch_activation(begin(stream), curve_of(kind), x.dtype, x.data, out.data,
                                 x.shape.count()),
               "activation");
  }

  void activation_backward(Activation kind, ConstView x, ConstView dy, View dx,
                           Stream stream) override {
    check::same("activation_backward", x, dy);
    check::same("activation_backward", x, dx);
    if (kind == Activation::none) return cast(dy, dx, stream);
    check_cuda(launch_activation_backward(begin(stream), curve_of(kind), x.dtype, x.data, dy.data,
                                          dx.data, x.shape.count()),
               "activation_backward");
  }

  void swiglu(ConstView gate, ConstView up, View out, Stream stream) override {
    check::same("swiglu", gate, up);
    check::same("swiglu", gate, out);
    check_cuda(
        launch_swiglu(begin(stream), gate.dtype, gate.data, up.data, out.data, gate.shape.count()),
        "swiglu");
  }

  void swiglu_backward(ConstView gate, ConstView up, ConstView dout, View dgate, View dup,
                       Stream stream) override {
    for (const ConstView& other : {up, dout, ConstView(dgate), ConstView(dup)})
      check::same("swiglu_backward", gate, other);
    check_cuda(launch_swiglu_backward(begin(stream), gate.dtype, gate.data, up.data, dout.data,
                                      dgate.data, dup.data, gate.shape.count()),
               "swiglu_backward");
  }

  void dropout(const DropoutArgs& args, ConstView x, View out, Stream stream) override {
    check::same("dropout", x, out);
    check::dropout("dropout", args, x);
    if (args.probability == 0) return cast(x, out, stream);
    drop(args, x, nullptr, out, stream);
  }

  void dropout_add(const DropoutArgs& args, ConstView x, ConstView residual, View out,
                   Stream stream) override {
    check::same("dropout_add", x, residual);
    check::same("dropout_add", x, out);
    check::dropout("dropout_add", args, x);
    if (args.probability == 0) return add(residual, x, out, stream);
    drop(args, x, residual.data, out, stream);
  }

  void fill_normal(View out, float mean, float std, const RandomSite& site,
                   std::uint64_t first_element, Stream stream) override {
    check::fill("fill_normal", out);
    check_cuda(launch_fill_normal(begin(stream), site, first_element, mean, std,
                                  static_cast<float*>(out.data), out.shape.count()),
               "fill_normal");
  }

  void fill_uniform(View out, float low, float high, const RandomSite& site,
                    std::uint64_t first_element, Stream stream) override {
    check::fill("fill_uniform", out);
    check_cuda(launch_fill_uniform(begin(stream), site, first_element, low, high - low,
                                   static_cast<float*>(out.data), out.shape.count()),
               "fill_uniform");
  }

  void fill(View out, float value, Stream stream) override {
    check::training_float("fill", "out", out);
    check_cuda(launch_fill(begin(stream), out.dtype, value, out.data, out.shape.count()), "fill");
  }

 private:
  Launch begin(Stream stream) { return {resources_.begin(stream), resources_.multiprocessors()}; }

  // Copies between any two kinds of memory; the driver detects the kind from the pointer.
  void copy(Launch at, void* out, const void* x, std::size_t bytes) const {
    resources_.copy(out, x, bytes, at.stream);
  }
  static void convert(Launch at, DType from, const void* x, DType to, void* out,
                      std::int64_t count) {
    check_cuda(is_training(from) && is_training(to) ? launch_scale(at, from, to, 1, x, out, count)
                                                    : launch_convert(at, from, to, x, out, count),
               "cast");
  }

  void drop(const DropoutArgs& args, const ConstView& x, const void* residual, const View& out,
            Stream stream) {
    const std::int64_t columns = x.shape.columns();
    check_cuda(launch_dropout(begin(stream), x.dtype, make_row_dropout(args, columns), x.data,
                              residual, out.data, x.shape.rows(), columns),
               "dropout");
  }

  CudaResources& resources_;
};

}  // namespace

std::unique_ptr<ElementwiseKernels> make_cuda_elementwise(CudaResources& resources) {
  return std::make_unique<CudaElementwise>(resources);
}

}  // namespace shoal::kernels
