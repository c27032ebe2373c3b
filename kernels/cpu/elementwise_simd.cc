#include <cstring>

#include "shoal/kernels/cpu/ranges.h"
#include "shoal/kernels/cpu/tile_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shoal/kernels/cpu/elementwise_simd.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h.
#include "shoal/kernels/cpu/loops-inl.h"
#include "shoal/kernels/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::kernels::HWY_NAMESPACE {

struct AddOp {
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const { return hn::Add(a, b); }
};
struct MultiplyOp {
  HWY_INLINE FloatVec operator()(FloatVec a, FloatVec b) const { return hn::Mul(a, b); }
};
struct ScaleOp {
  FloatVec factor;
  HWY_INLINE FloatVec operator()(FloatVec x) const { return hn::Mul(x, factor); }
};
struct AxpyOp {
  FloatVec alpha;
  HWY_INLINE FloatVec operator()(FloatVec x, FloatVec y) const { return hn::MulAdd(alpha, x, y); }
};
struct CopyOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return x; }
};
struct FillOp {
  FloatVec value;
  HWY_INLINE FloatVec operator()() const { return value; }
};
template <Precision precision>
struct GeluTanhOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return gelu_tanh<precision>(x); }
  HWY_INLINE FloatVec operator()(FloatVec x, FloatVec dy) const {
    return hn::Mul(dy, gelu_tanh_derivative<precision>(x));
  }
};
template <Precision precision>
struct GeluErfOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return gelu_erf<precision>(x); }
  HWY_INLINE FloatVec operator()(FloatVec x, FloatVec dy) const {
    return hn::Mul(dy, gelu_erf_derivative<precision>(x));
  }
};
struct TanhOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return tanh_of(x); }
  HWY_INLINE FloatVec operator()(FloatVec x, FloatVec dy) const {
    return hn::Mul(dy, tanh_derivative(x));
  }
};
struct ReluOp {
  HWY_INLINE FloatVec operator()(FloatVec x) const { return at_least(0.0f, x); }
  HWY_INLINE FloatVec operator()(FloatVec x, FloatVec dy) const {
    return hn::IfThenElseZero(hn::Gt(x, hn::Zero(kFloat)), dy);
  }
};

struct SwigluOp {
  HWY_INLINE FloatVec operator()(FloatVec gate, FloatVec up) const {
    return hn::Mul(silu(gate), up);
  }
};
struct SwigluGateOp {
  HWY_INLINE FloatVec operator()(FloatVec gate, FloatVec up, FloatVec dout) const {
    return hn::Mul(hn::Mul(dout, up), silu_derivative(gate));
  }
};

// Calls map() on untyped tensors of one dtype.
template <class Op, class... In>
HWY_INLINE void map_all(DType dtype, std::int64_t count, const Op& op, void* out, In... in) {
  with_float(dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    map(count, op, static_cast<T*>(out), static_cast<const T*>(in)...);
  });
}

void Add(DType dtype, const void* a, const void* b, void* out, std::int64_t count) {
  map_all(dtype, count, AddOp{}, out, a, b);
}

void Multiply(DType dtype, const void* a, const void* b, void* out, std::int64_t count) {
  map_all(dtype, count, MultiplyOp{}, out, a, b);
}

void Scale(DType dtype, const void* x, float factor, void* out, std::int64_t count) {
  map_all(dtype, count, ScaleOp{floats(factor)}, out, x);
}

void Axpy(DType dtype, float alpha, const void* x, void* y, std::int64_t count) {
  map_all(dtype, count, AxpyOp{floats(alpha)}, y, x, static_cast<const void*>(y));
}

// y (f32) += x (f32, bf16 or f16).
void Accumulate(DType dtype, const void* x, float* y, std::int64_t count) {
  with_float(dtype, [&](auto type) HWY_ATTR {
    map(count, AddOp{}, y, static_cast<const float*>(y), static_cast<const decltype(type)*>(x));
  });
}

void Fill(float value, float* out, std::int64_t count) { map(count, FillOp{floats(value)}, out); }

void Convert(DType from, DType to, const void* x, void* out, std::int64_t count) {
  with_float(from, [&](auto from_type) HWY_ATTR {
    with_float(to, [&](auto to_type) HWY_ATTR {
      map(count, CopyOp{}, static_cast<decltype(to_type)*>(out),
          static_cast<const decltype(from_type)*>(x));
    });
  });
}

void AddBias(DType dtype, DType bias_dtype, const void* x, const void* bias, void* out,
             std::int64_t rows, std::int64_t columns) {
  with_float(dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (std::int64_t row = 0; row < rows; ++row) {
      const T* from = static_cast<const T*>(x) + row * columns;
      T* to = static_cast<T*>(out) + row * columns;
      if (bias_dtype == DType::f32)
        map(columns, AddOp{}, to, from, static_cast<const float*>(bias));
      else
        map(columns, AddOp{}, to, from, static_cast<const T*>(bias));
    }
  });
}

// Runs Op with the precision that dtype needs. `pairs`: has_bf16_pairs().
template <template <Precision> class Op, class... In>
HWY_INLINE void map_precisely(DType dtype, [[maybe_unused]] bool pairs, std::int64_t count,
                              void* out, In... in) {
  if (dtype != DType::bf16) return map_all(dtype, count, Op<Precision::f32>{}, out, in...);
#if HWY_TARGET <= HWY_AVX3
  if (pairs)
    return map_by_instruction(count, Op<Precision::bf16>{}, static_cast<bfloat16*>(out),
                              static_cast<const bfloat16*>(in)...);
#endif
  map_all(dtype, count, Op<Precision::bf16>{}, out, in...);
}

template <class... In>
HWY_INLINE void ActivationOf(Activation kind, DType dtype, bool pairs, std::int64_t count,
                             void* out, In... in) {
  if (kind == Activation::gelu_tanh)
    map_precisely<GeluTanhOp>(dtype, pairs, count, out, in...);
  else if (kind == Activation::tanh)
    map_all(dtype, count, TanhOp{}, out, in...);
  else if (kind == Activation::relu)
    map_all(dtype, count, ReluOp{}, out, in...);
  else
    map_precisely<GeluErfOp>(dtype, pairs, count, out, in...);
}

void ActivationForward(Activation kind, DType dtype, bool pairs, const void* x, void* out,
                       std::int64_t count) {
  ActivationOf(kind, dtype, pairs, count, out, x);
}

void ActivationBackward(Activation kind, DType dtype, bool pairs, const void* x, const void* dy,
                        void* dx, std::int64_t count) {
  ActivationOf(kind, dtype, pairs, count, dx, x, dy);
}

void Swiglu(DType dtype, const void* gate, const void* up, void* out, std::int64_t count) {
  map_all(dtype, count, SwigluOp{}, out, gate, up);
}

// Works in pieces that stay in L1 between the two passes. A piece's dup is buffered, since dup may
// alias up.
void SwigluBackward(DType dtype, const void* gate, const void* up, const void* dout, void* dgate,
                    void* dup, std::int64_t count) {
  with_float(dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    constexpr std::int64_t kPiece = 1024;
    HWY_ALIGN T held[kPiece];
    for (std::int64_t i = 0; i < count; i += kPiece) {
      const std::int64_t some = HWY_MIN(kPiece, count - i);
      const T *g = static_cast<const T*>(gate) + i, *u = static_cast<const T*>(up) + i,
              *d = static_cast<const T*>(dout) + i;
      map(some, SwigluOp{}, held, g, d);
      map(some, SwigluGateOp{}, static_cast<T*>(dgate) + i, g, u, d);
      std::memcpy(static_cast<void*>(static_cast<T*>(dup) + i), held,
                  static_cast<std::size_t>(some) * sizeof(T));
    }
  });
}

void RotaryHeads(DType dtype, const void* x, const float* table, bool backward, void* out,
                 const RotaryHeadsShape& heads) {
  const std::int64_t half = heads.turning / 2, still = heads.channels - heads.turning,
                     lanes = FloatLanes();
  const FloatVec sign = floats(backward ? -1.0f : 1.0f);
  with_float(dtype, [&](auto type) HWY_ATTR {
    using T = decltype(type);
    for (std::int64_t head = 0; head < heads.count; ++head) {
      const T* from = static_cast<const T*>(x) + head * heads.channels;
      T* to = static_cast<T*>(out) + head * heads.channels;
      if (still > 0 && from != to)
        std::memcpy(to + heads.turning, from + heads.turning,
                    static_cast<std::size_t>(still) * sizeof(T));
      std::int64_t i = 0;
      for (; i + lanes <= half; i += lanes) {
        const FloatVec a = LoadFloats(from + i), b = LoadFloats(from + half + i),
                       c = LoadFloats(table + i), s = hn::Mul(sign, LoadFloats(table + half + i));
        StoreFloats(hn::NegMulAdd(b, s, hn::Mul(a, c)), to + i);
        StoreFloats(hn::MulAdd(a, s, hn::Mul(b, c)), to + half + i);
      }
      if (const std::int64_t some = half - i; some > 0) {
        const FloatVec a = LoadSomeFloats(from + i, some),
                       b = LoadSomeFloats(from + half + i, some),
                       c = LoadSomeFloats(table + i, some),
                       s = hn::Mul(sign, LoadSomeFloats(table + half + i, some));
        StoreSomeFloats(hn::NegMulAdd(b, s, hn::Mul(a, c)), to + i, some);
        StoreSomeFloats(hn::MulAdd(a, s, hn::Mul(b, c)), to + half + i, some);
      }
    }
  });
}

}  // namespace shoal::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::kernels {
HWY_EXPORT(Add);
HWY_EXPORT(Multiply);
HWY_EXPORT(Scale);
HWY_EXPORT(Axpy);
HWY_EXPORT(Accumulate);
HWY_EXPORT(Fill);
HWY_EXPORT(Convert);
HWY_EXPORT(AddBias);
HWY_EXPORT(ActivationForward);
HWY_EXPORT(ActivationBackward);
HWY_EXPORT(Swiglu);
HWY_EXPORT(SwigluBackward);
HWY_EXPORT(RotaryHeads);

void add_range(DType dtype, const void* a, const void* b, void* out, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Add)(dtype, a, b, out, count);
}
void multiply_range(DType dtype, const void* a, const void* b, void* out, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Multiply)(dtype, a, b, out, count);
}
void scale_range(DType dtype, const void* x, float factor, void* out, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Scale)(dtype, x, factor, out, count);
}
void axpy_range(DType dtype, float alpha, const void* x, void* y, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Axpy)(dtype, alpha, x, y, count);
}
void accumulate_range(DType dtype, const void* x, float* y, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Accumulate)(dtype, x, y, count);
}
void fill_range(float value, float* out, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Fill)(value, out, count);
}
void convert_range(DType from, DType to, const void* x, void* out, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Convert)(from, to, x, out, count);
}
void add_bias_rows(DType dtype, DType bias_dtype, const void* x, const void* bias, void* out,
                   std::int64_t rows, std::int64_t columns) {
  HWY_DYNAMIC_DISPATCH(AddBias)(dtype, bias_dtype, x, bias, out, rows, columns);
}
void activation_range(Activation kind, DType dtype, const void* x, void* out, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(ActivationForward)(kind, dtype, has_bf16_pairs(), x, out, count);
}
void activation_backward_range(Activation kind, DType dtype, const void* x, const void* dy,
                               void* dx, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(ActivationBackward)(kind, dtype, has_bf16_pairs(), x, dy, dx, count);
}
void swiglu_range(DType dtype, const void* gate, const void* up, void* out, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(Swiglu)(dtype, gate, up, out, count);
}
void swiglu_backward_range(DType dtype, const void* gate, const void* up, const void* dout,
                           void* dgate, void* dup, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(SwigluBackward)(dtype, gate, up, dout, dgate, dup, count);
}
void rotary_heads(DType dtype, const void* x, const float* table, bool backward, void* out,
                  const RotaryHeadsShape& heads) {
  HWY_DYNAMIC_DISPATCH(RotaryHeads)(dtype, x, table, backward, out, heads);
}

}  // namespace shoal::kernels
#endif
