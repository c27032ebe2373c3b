#include <algorithm>
#include <cstring>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/convert.h"
#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/cpu/ranges.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::kernels {
namespace {

// Number of elements below which a second thread costs more than it saves. Moving 64 Ki elements
// takes some 40 us; waking a thread takes 5 us.
constexpr std::int64_t kMoveGrain = 65536;
constexpr std::int64_t kMathGrain = 16384;  // for a few more operations per element

const std::byte* at(const void* base, std::int64_t index, DType dtype) {
  return static_cast<const std::byte*>(base) + index * static_cast<std::int64_t>(size_of(dtype));
}
std::byte* at(void* base, std::int64_t index, DType dtype) {
  return static_cast<std::byte*>(base) + index * static_cast<std::int64_t>(size_of(dtype));
}

std::int64_t rows_grain(std::int64_t elements, std::int64_t columns) {
  return std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, columns));
}

// Writes output rows in 64-byte tiles. A tile's source rows stay in L1, and each cache line of the
// output is written once.
template <class Word>
void transpose_rows(const Word* x, Word* out, std::int64_t rows, std::int64_t columns,
                    std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kTile = 64 / static_cast<std::int64_t>(sizeof(Word));
  Word tile[kTile * kTile];
  for (std::int64_t column = begin; column < end; column += kTile) {
    const std::int64_t width = std::min(kTile, end - column);
    for (std::int64_t row = 0; row < rows; row += kTile) {
      const std::int64_t height = std::min(kTile, rows - row);
      for (std::int64_t i = 0; i < height; ++i) {
        const Word* from = x + (row + i) * columns + column;
        for (std::int64_t j = 0; j < width; ++j) tile[j * kTile + i] = from[j];
      }
      for (std::int64_t j = 0; j < width; ++j)
        std::memcpy(out + (column + j) * rows + row, tile + j * kTile,
                    static_cast<std::size_t>(height) * sizeof(Word));
    }
  }
}

class CpuElementwise final : public ElementwiseKernels {
 public:
  explicit CpuElementwise(const CpuResources& resources) : threads_(resources.threads) {}

  void add(ConstView a, ConstView b, View out, Stream) override {
    check::same("add", a, b);
    check::same("add", a, out);
    over(out, kMoveGrain, [&](std::int64_t i, std::int64_t n) {
      add_range(a.dtype, at(a.data, i, a.dtype), at(b.data, i, b.dtype), at(out.data, i, a.dtype),
                n);
    });
  }

  void multiply(ConstView a, ConstView b, View out, Stream) override {
    check::same("multiply", a, b);
    check::same("multiply", a, out);
    over(out, kMoveGrain, [&](std::int64_t i, std::int64_t n) {
      multiply_range(a.dtype, at(a.data, i, a.dtype), at(b.data, i, b.dtype),
                     at(out.data, i, a.dtype), n);
    });
  }

  void scale(ConstView x, float factor, View out, Stream) override {
    check::same("scale", x, out);
    over(out, kMoveGrain, [&](std::int64_t i, std::int64_t n) {
      scale_range(x.dtype, at(x.data, i, x.dtype), factor, at(out.data, i, x.dtype), n);
    });
  }

  void axpy(float alpha, ConstView x, View y, Stream) override {
    check::same("axpy", x, y);
    over(y, kMoveGrain, [&](std::int64_t i, std::int64_t n) {
      axpy_range(x.dtype, alpha, at(x.data, i, x.dtype), at(y.data, i, x.dtype), n);
    });
  }

  void cast(ConstView x, View out, Stream) override {
    check::shape("cast", "out", out, x.shape);
    const auto in_simd = [](DType d) { return is_floating(d) && d != DType::f64; };
    over(out, kMoveGrain, [&](std::int64_t i, std::int64_t n) {
      const std::byte* from = at(x.data, i, x.dtype);
      std::byte* to = at(out.data, i, out.dtype);
      if (x.dtype == out.dtype)
        std::memmove(to, from, static_cast<std::size_t>(n) * size_of(x.dtype));
      else if (in_simd(x.dtype) && in_simd(out.dtype))
        convert_range(x.dtype, out.dtype, from, to, n);
      else
        convert_elements(x.dtype, from, out.dtype, to, n);
    });
  }

  void transpose(ConstView x, View out, Stream) override {
    check::transpose(x, out);
    const std::int64_t rows = x.shape[-2], columns = x.shape[-1], matrices = check::matrices(x);
    SHOAL_CHECK(x.data != out.data || x.shape.count() <= 1, "transpose: not in place");
    const auto run = [&]<class Word>(Word) {
      // Threads take whole tiles, so that no two threads write one cache line.
      constexpr std::int64_t kTile = 64 / static_cast<std::int64_t>(sizeof(Word));
      const std::int64_t tiles = (columns + kTile - 1) / kTile;
      parallel_for(threads_, matrices * tiles, rows_grain(kMoveGrain, rows * kTile),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t from = begin, to = begin; from < end; from = to) {
                       const std::int64_t matrix = from / tiles;
                       to = std::min(end, (matrix + 1) * tiles);
                       transpose_rows(static_cast<const Word*>(x.data) + matrix * rows * columns,
                                      static_cast<Word*>(out.data) + matrix * rows * columns, rows,
                                      columns, (from - matrix * tiles) * kTile,
                                      std::min((to - matrix * tiles) * kTile, columns));
                     }
                   });
    };
    switch (size_of(x.dtype)) {
      case 1:
        return run(std::uint8_t{});
      case 2:
        return run(std::uint16_t{});
      case 4:
        return run(std::uint32_t{});
      default:
        return run(std::uint64_t{});
    }
  }

  void add_bias(ConstView x, ConstView bias, View out, Stream) override {
    check::add_bias(x, bias, out);
    const std::int64_t columns = x.shape.columns(), rows = x.shape.rows();
    const auto add = [&](std::int64_t row, std::int64_t count, std::int64_t column,
                         std::int64_t width) {
      add_bias_rows(x.dtype, bias.dtype, at(x.data, row * columns + column, x.dtype),
                    at(bias.data, column, bias.dtype),
                    at(out.data, row * columns + column, x.dtype), count, width);
    };
    // With few long rows (a batch and its positions), threads split the columns.
    if (rows >= threads_) {
      over_rows(x, kMoveGrain,
                [&](std::int64_t row, std::int64_t count) { add(row, count, 0, columns); });
    } else if (rows > 0) {
      parallel_for(threads_, columns, kMoveGrain / rows, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = 0; row < rows; ++row) add(row, 1, begin, end - begin);
      });
    }
  }

  void activation(Activation kind, ConstView x, View out, Stream stream) override {
    check::same("activation", x, out);
    if (kind == Activation::none) return cast(x, out, stream);
    over(out, kMathGrain, [&](std::int64_t i, std::int64_t n) {
      activation_range(kind, x.dtype, at(x.data, i, x.dtype), at(out.data, i, x.dtype), n);
    });
  }

  void activation_backward(Activation kind, ConstView x, ConstView dy, View dx,
                           Stream stream) override {
    check::same("activation_backward", x, dy);
    check::same("activation_backward", x, dx);
    if (kind == Activation::none) return cast(dy, dx, stream);
    over(dx, kMathGrain, [&](std::int64_t i, std::int64_t n) {
      activation_backward_range(kind, x.dtype, at(x.data, i, x.dtype), at(dy.data, i, x.dtype),
                                at(dx.data, i, x.dtype), n);
    });
  }

  void swiglu(ConstView gate, ConstView up, View out, Stream) override {
    check::same("swiglu", gate, up);
    check::same("swiglu", gate, out);
    over(out, kMathGrain, [&](std::int64_t i, std::int64_t n) {
      swiglu_range(gate.dtype, at(gate.data, i, gate.dtype), at(up.data, i, gate.dtype),
                   at(out.data, i, gate.dtype), n);
    });
  }

  void swiglu_backward(ConstView gate, ConstView up, ConstView dout, View dgate, View dup,
                       Stream) override {
    for (const ConstView& other : {up, dout, ConstView(dgate), ConstView(dup)})
      check::same("swiglu_backward", gate, other);
    over(dgate, kMathGrain, [&](std::int64_t i, std::int64_t n) {
      swiglu_backward_range(gate.dtype, at(gate.data, i, gate.dtype), at(up.data, i, gate.dtype),
                            at(dout.data, i, gate.dtype), at(dgate.data, i, gate.dtype),
                            at(dup.data, i, gate.dtype), n);
    });
  }

  void dropout(const DropoutArgs& args, ConstView x, View out, Stream stream) override {
    check::same("dropout", x, out);
    check::dropout("dropout", args, x);
    if (args.probability == 0) return cast(x, out, stream);
    drop_rows(args, x, nullptr, out);
  }

  void dropout_add(const DropoutArgs& args, ConstView x, ConstView residual, View out,
                   Stream stream) override {
    check::same("dropout_add", x, residual);
    check::same("dropout_add", x, out);
    check::dropout("dropout_add", args, x);
    if (args.probability == 0) return add(residual, x, out, stream);
    drop_rows(args, x, residual.data, out);
  }

  void fill_normal(View out, float mean, float std, const RandomSite& site,
                   std::uint64_t first_element, Stream) override {
    check::fill("fill_normal", out);
    const RandomKey key(site);
    over(out, kMathGrain, [&](std::int64_t i, std::int64_t n) {
      fill_normal_range(key, site.sample_first, first_element + static_cast<std::uint64_t>(i), mean,
                        std, static_cast<float*>(out.data) + i, n);
    });
  }

  void fill_uniform(View out, float low, float high, const RandomSite& site,
                    std::uint64_t first_element, Stream) override {
    check::fill("fill_uniform", out);
    const RandomKey key(site);
    over(out, kMathGrain, [&](std::int64_t i, std::int64_t n) {
      fill_uniform_range(key, site.sample_first, first_element + static_cast<std::uint64_t>(i), low,
                         high, static_cast<float*>(out.data) + i, n);
    });
  }

  void fill(View out, float value, Stream) override {
    check::training_float("fill", "out", out);
    if (out.dtype == DType::f32) {
      over(out, kMoveGrain, [&](std::int64_t i, std::int64_t n) {
        fill_range(value, static_cast<float*>(out.data) + i, n);
      });
    } else {
      const std::uint16_t bits =
          out.dtype == DType::bf16 ? bfloat16(value).bits : float16(value).bits;
      over(out, kMoveGrain, [&](std::int64_t i, std::int64_t n) {
        std::fill_n(static_cast<std::uint16_t*>(out.data) + i, n, bits);
      });
    }
  }

 private:
  // Calls body(first, count) over the elements of `shaped`.
  template <class Body>
  void over(const ConstView& shaped, std::int64_t grain, const Body& body) const {
    parallel_for(threads_, shaped.shape.count(), grain,
                 [&](std::int64_t begin, std::int64_t end) { body(begin, end - begin); });
  }
  template <class Body>
  void over_rows(const ConstView& shaped, std::int64_t grain, const Body& body) const {
    parallel_for(threads_, shaped.shape.columns() ? shaped.shape.rows() : 0,
                 rows_grain(grain, shaped.shape.columns()),
                 [&](std::int64_t begin, std::int64_t end) { body(begin, end - begin); });
  }

  void drop_rows(const DropoutArgs& args, const ConstView& x, const void* residual,
                 const View& out) const {
    const std::int64_t columns = x.shape.columns();
    const DropoutPlan plan(args, columns);
    over_rows(x, kMathGrain, [&](std::int64_t row, std::int64_t rows) {
      dropout_rows(x.dtype, plan, x.data, residual, out.data, row, rows, columns);
    });
  }

  int threads_;
};

}  // namespace

std::unique_ptr<ElementwiseKernels> make_cpu_elementwise(const CpuResources& resources) {
  return std::make_unique<CpuElementwise>(resources);
}

}  // namespace shoal::kernels
