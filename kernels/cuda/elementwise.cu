#include <cmath>
#include <type_traits>

#include "shoal/kernels/cuda/elementwise.cuh"
#include "shoal/kernels/cuda/gelu.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/row_packs.cuh"
#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kTogether = 2;  // packs in flight per thread

struct AxpyOp {
  float alpha;
  __device__ float operator()(float a, float b) const { return fmaf(alpha, a, b); }
};
struct ScaleOp {
  float factor;
  __device__ float operator()(float x) const { return factor * x; }
};
struct MultiplyOp {
  __device__ float operator()(float a, float b) const { return a * b; }
};
struct FillOp {
  float value;
  __device__ float operator()() const { return value; }
};
template <Curve curve>
struct ActivationOp {
  __device__ float operator()(float x) const {
    if constexpr (curve == Curve::gelu_tanh)
      return gelu_tanh(x);
    else if constexpr (curve == Curve::gelu_erf)
      return gelu_erf(x);
    else if constexpr (curve == Curve::tanh)
      return tanhf(x);
    else
      return at_least(0.0f, x);
  }
  __device__ float operator()(float x, float dy) const {
    if constexpr (curve == Curve::gelu_tanh) {
      return dy * gelu_tanh_derivative(x);
    } else if constexpr (curve == Curve::gelu_erf) {
      return dy * gelu_erf_derivative(x);
    } else if constexpr (curve == Curve::tanh) {
      // 1 / cosh(x)^2 without cancellation
      const float e = expf(-2.0f * fabsf(x)), s = 2.0f / (1.0f + e);
      return dy * e * s * s;
    } else {
      return x > 0.0f ? dy : 0.0f;
    }
  }
};

// Calls fn with the curve's operation.
template <class Fn>
cudaError_t with_curve(Curve curve, const Fn& fn) {
  switch (curve) {
    case Curve::gelu_tanh:
      return fn(ActivationOp<Curve::gelu_tanh>{});
    case Curve::gelu_erf:
      return fn(ActivationOp<Curve::gelu_erf>{});
    case Curve::tanh:
      return fn(ActivationOp<Curve::tanh>{});
    case Curve::relu:
      return fn(ActivationOp<Curve::relu>{});
  }
  return cudaErrorInvalidValue;
}

__device__ __forceinline__ std::int64_t thread_number() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ __forceinline__ std::int64_t thread_count() {
  return static_cast<std::int64_t>(gridDim.x) * kThreads;
}

// out = op(a, b) with `inputs` inputs; the others are not read. All loads of an iteration come
// before its stores, so that several loads are in flight although out may alias an input.
template <int inputs, int N, class In, class Out, class Op>
__global__ void __launch_bounds__(kThreads)
    map_kernel(std::int64_t count, bool aligned, Op op, const In* a, const In* b, Out* out) {
  const std::int64_t step = thread_count() * N;
  for (std::int64_t first = thread_number() * N; first < count; first += kTogether * step) {
    float x[kTogether][N], y[kTogether][N];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const std::int64_t i = first + u * step;
      if (i >= count) break;
      if constexpr (inputs > 0) load(a + i, count - i, aligned, x[u]);
      if constexpr (inputs > 1) load(b + i, count - i, aligned, y[u]);
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const std::int64_t i = first + u * step;
      if (i >= count) break;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        if constexpr (inputs == 0) x[u][k] = op();
        if constexpr (inputs == 1) x[u][k] = op(x[u][k]);
        if constexpr (inputs == 2) x[u][k] = op(x[u][k], y[u][k]);
      }
      store(x[u], count - i, aligned, out + i);
    }
  }
}

template <int inputs, class In, class Out, class Op>
cudaError_t map(Launch at, std::int64_t count, const Op& op, const void* a, const void* b,
                void* out) {
  if (count == 0) return cudaSuccess;
  // 16 bytes of the wider type.
  constexpr int N = 16 / static_cast<int>(sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out));
  const unsigned grid = grid_for((count + N - 1) / N, kThreads, at.multiprocessors);
  return launch_kernel(map_kernel<inputs, N, In, Out, Op>, grid, kThreads, 0, at.stream, count,
                       aligned16(a, b, out), op, static_cast<const In*>(a),
                       static_cast<const In*>(b), static_cast<Out*>(out));
}

struct SwigluOp {
  __device__ float operator()(float gate, float up) const { return silu(gate) * up; }
};

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(std::int64_t count, bool aligned, const T* gate, const T* up,
                           const T* dout, T* dgate, T* dup) {
  for (std::int64_t i = thread_number() * N; i < count; i += thread_count() * N) {
    float g[N], u[N], d[N], along[N];
    load(gate + i, count - i, aligned, g);
    load(up + i, count - i, aligned, u);
    load(dout + i, count - i, aligned, d);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      along[k] = d[k] * silu(g[k]);
      g[k] = d[k] * u[k] * silu_derivative(g[k]);
    }
    store(g, count - i, aligned, dgate + i);
    store(along, count - i, aligned, dup + i);
  }
}

template <int N, class T, class B>
__global__ void __launch_bounds__(kThreads)
    add_bias_kernel(RowPacks packs, bool aligned, const T* x, const B* bias, T* out) {
  for (std::int64_t pack = thread_number(); pack < packs.total; pack += thread_count()) {
    const RowPacks::Place place = packs.at(pack);
    const std::int64_t i = place.row * packs.columns + place.column;
    float value[N], added[N];
    load(x + i, place.count, aligned, value);
    load(bias + place.column, place.count, aligned, added);
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] += added[k];
    store(value, place.count, aligned, out + i);
  }
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(RowPacks packs, bool aligned, RowDropout dropout, const T* x, const T* residual,
                   T* out) {
  const PhiloxKey key(dropout.site);
  for (std::int64_t pack = thread_number(); pack < packs.total; pack += thread_count()) {
    const RowPacks::Place place = packs.at(pack);
    const std::int64_t i = place.row * packs.columns + place.column;
    float value[N], added[N];
    load(x + i, place.count, aligned, value);
    if (residual) load(residual + i, place.count, aligned, added);
    std::uint32_t bits[N];
    philox_bits(key, dropout.sample(place.row),
                dropout.first_element(place.row) + static_cast<std::uint64_t>(place.column), bits);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      value[k] = dropped(value[k], bits[k], dropout.threshold, dropout.scale);
      if (residual) value[k] = __fadd_rn(added[k], value[k]);
    }
    store(value, place.count, aligned, out + i);
  }
}

// Goes through shared memory tile by tile; rows are padded to spread a column over the banks.
template <int kTile, class Word>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const Word* x, Word* out, std::int64_t rows, std::int64_t columns,
                     std::int64_t across, std::int64_t tiles, std::int64_t all) {
  constexpr int kPad = sizeof(Word) < 4 ? 4 / static_cast<int>(sizeof(Word)) : 1;
  constexpr int kStep = kThreads / kTile;
  __shared__ Word tile[kTile][kTile + kPad];
  const int fast = static_cast<int>(threadIdx.x) % kTile,
            slow = static_cast<int>(threadIdx.x) / kTile;
  for (std::int64_t at = blockIdx.x; at < all; at += gridDim.x) {
    const std::int64_t t = at % tiles, matrix = at / tiles * rows * columns,
                       row = t / across * kTile, column = t % across * kTile;
#pragma unroll
    for (int i = 0; i < kTile; i += kStep)
      if (row + i + slow < rows && column + fast < columns)
        tile[i + slow][fast] = x[matrix + (row + i + slow) * columns + column + fast];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kTile; j += kStep)
      if (column + j + slow < columns && row + fast < rows)
        out[matrix + (column + j + slow) * rows + row + fast] = tile[fast][j + slow];
    __syncthreads();
  }
}

template <class Word, int kTile>
cudaError_t transpose(Launch at, const void* x, void* out, std::int64_t matrices, std::int64_t rows,
                      std::int64_t columns) {
  const std::int64_t down = (rows + kTile - 1) / kTile, across = (columns + kTile - 1) / kTile;
  const std::int64_t all = matrices * down * across;
  const unsigned grid = grid_for(all * kThreads, kThreads, at.multiprocessors);
  return launch_kernel(transpose_kernel<kTile, Word>, grid, kThreads, 0, at.stream,
                       static_cast<const Word*>(x), static_cast<Word*>(out), rows, columns, across,
                       down * across, all);
}

// As in elementwise.h: u = (bits + 1/2) / 2^32, rounded once. The halves are converted separately,
// since f32 cannot hold 32 bits.
__device__ __forceinline__ void normal_pair(std::uint32_t word, std::uint32_t turn, float mean,
                                            float std, float* pair) {
  const auto upper = static_cast<float>(word >> 16), lower = static_cast<float>(word & 0xffffu);
  const float u = fmaf(upper, 65536.0f, lower + 0.5f) * 0x1p-32f;
  const float radius = sqrtf(-2.0f * logf(u));
  float sine, cosine;
  sincospif(2.0f * uniform_of(turn), &sine, &cosine);
  pair[0] = fmaf(std, radius * cosine, mean);
  pair[1] = fmaf(std, radius * sine, mean);
}

// Each thread makes whole blocks of four elements and stores those in range.
template <bool normal>
__global__ void __launch_bounds__(kThreads)
    random_kernel(RandomSite site, std::uint64_t first, float base, float width, float* out,
                  std::int64_t count) {
  const PhiloxKey key(site);
  const std::uint64_t begin = first / 4;
  const auto blocks =
      static_cast<std::int64_t>((first + static_cast<std::uint64_t>(count) + 3) / 4 - begin);
  for (std::int64_t b = thread_number(); b < blocks; b += thread_count()) {
    std::uint32_t bits[4];
    philox_block(key, site.sample_first, begin + static_cast<std::uint64_t>(b), bits);
    float value[4];
    if constexpr (normal) {
      normal_pair(bits[0], bits[1], base, width, value);
      normal_pair(bits[2], bits[3], base, width, value + 2);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) value[k] = __fadd_rn(base, __fmul_rn(width, uniform_of(bits[k])));
    }
    const std::int64_t i = 4 * b - static_cast<std::int64_t>(first % 4);
    if (i >= 0 && i + 4 <= count && reinterpret_cast<std::uintptr_t>(out + i) % 16 == 0) {
      store(value, out + i);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (i + k >= 0 && i + k < count) out[i + k] = value[k];
    }
  }
}

template <bool normal>
cudaError_t random_fill(Launch at, const RandomSite& site, std::uint64_t first, float base,
                        float width, float* out, std::int64_t count) {
  if (count == 0) return cudaSuccess;
  return launch_kernel(random_kernel<normal>, grid_for(count / 4 + 2, kThreads, at.multiprocessors),
                       kThreads, 0, at.stream, site, first, base, width, out, count);
}

// An element of any dtype: integers exactly as i64, floats exactly as f64.
struct Any {
  bool integer;
  long long whole;
  double real;
};

template <class T>
__device__ __forceinline__ T element(const void* x, std::int64_t i) {
  return static_cast<const T*>(x)[i];
}

__device__ Any load_any(DType dtype, const void* x, std::int64_t i) {
  switch (dtype) {
    case DType::f32:
      return {false, 0, element<float>(x, i)};
    case DType::bf16:
      return {false, 0, widened(element<__nv_bfloat16>(x, i))};
    case DType::f16:
      return {false, 0, widened(element<__half>(x, i))};
    case DType::f64:
      return {false, 0, element<double>(x, i)};
    case DType::i64:
      return {true, element<std::int64_t>(x, i), 0};
    case DType::i32:
      return {true, element<std::int32_t>(x, i), 0};
    case DType::u8:
      return {true, element<std::uint8_t>(x, i), 0};
    case DType::i8:
      return {true, element<std::int8_t>(x, i), 0};
  }
  return {true, 0, 0};
}

// As in convert.cc: integers wrap; floats go toward zero, saturate, and NaN gives 0.
template <class T>
__device__ __forceinline__ void store_integer(const Any& value, T low, T high, void* out,
                                              std::int64_t i) {
  T result;
  if (value.integer)
    result = static_cast<T>(value.whole);
  else if (isnan(value.real))
    result = 0;
  else if (value.real >= 2.0 * static_cast<double>(high / 2 + 1))
    result = high;
  else if (value.real <= static_cast<double>(low))
    result = low;
  else
    result = static_cast<T>(static_cast<long long>(value.real));
  static_cast<T*>(out)[i] = result;
}

__device__ void store_any(const Any& value, DType dtype, void* out, std::int64_t i) {
  const auto single = [&] {
    return value.integer ? __ll2float_rn(value.whole) : __double2float_rn(value.real);
  };
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(out)[i] = single();
      break;
    case DType::bf16:
      static_cast<__nv_bfloat16*>(out)[i] = narrowed<__nv_bfloat16>(single());
      break;
    case DType::f16:
      static_cast<__half*>(out)[i] = narrowed<__half>(single());
      break;
    case DType::f64:
      static_cast<double*>(out)[i] = value.integer ? __ll2double_rn(value.whole) : value.real;
      break;
    case DType::i64:
      store_integer<std::int64_t>(value, INT64_MIN, INT64_MAX, out, i);
      break;
    case DType::i32:
      store_integer<std::int32_t>(value, INT32_MIN, INT32_MAX, out, i);
      break;
    case DType::u8:
      store_integer<std::uint8_t>(value, 0, UINT8_MAX, out, i);
      break;
    case DType::i8:
      store_integer<std::int8_t>(value, INT8_MIN, INT8_MAX, out, i);
      break;
  }
}

__global__ void __launch_bounds__(kThreads)
    convert_kernel(DType from, DType to, const void* x, void* out, std::int64_t count) {
  for (std::int64_t i = thread_number(); i < count; i += thread_count())
    store_any(load_any(from, x, i), to, out, i);
}

}  // namespace

cudaError_t launch_axpy(Launch at, DType dtype, float alpha, const void* a, const void* b,
                        void* out, std::int64_t count) {
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    return map<2, T, T>(at, count, AxpyOp{alpha}, a, b, out);
  });
}

cudaError_t launch_scale(Launch at, DType from, DType to, float factor, const void* x, void* out,
                         std::int64_t count) {
  return with_training_type(from, [&](auto from_type) {
    return with_training_type(to, [&](auto to_type) {
      return map<1, decltype(from_type), decltype(to_type)>(at, count, ScaleOp{factor}, x, nullptr,
                                                            out);
    });
  });
}

cudaError_t launch_convert(Launch at, DType from, DType to, const void* x, void* out,
                           std::int64_t count) {
  if (count == 0) return cudaSuccess;
  return launch_kernel(convert_kernel, grid_for(count, kThreads, at.multiprocessors), kThreads, 0,
                       at.stream, from, to, x, out, count);
}

cudaError_t launch_fill(Launch at, DType dtype, float value, void* out, std::int64_t count) {
  if (count == 0) return cudaSuccess;
  if (value == 0 && !std::signbit(value))
    return cudaMemsetAsync(out, 0, static_cast<std::size_t>(count) * (dtype == DType::f32 ? 4 : 2),
                           at.stream);
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    return map<0, T, T>(at, count, FillOp{value}, nullptr, nullptr, out);
  });
}

cudaError_t launch_activation(Launch at, Curve curve, DType dtype, const void* x, void* out,
                              std::int64_t count) {
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    return with_curve(curve,
                      [&](const auto& op) { return map<1, T, T>(at, count, op, x, nullptr, out); });
  });
}

cudaError_t launch_activation_backward(Launch at, Curve curve, DType dtype, const void* x,
                                       const void* dy, void* dx, std::int64_t count) {
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    return with_curve(curve,
                      [&](const auto& op) { return map<2, T, T>(at, count, op, x, dy, dx); });
  });
}

cudaError_t launch_multiply(Launch at, DType dtype, const void* a, const void* b, void* out,
                            std::int64_t count) {
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    return map<2, T, T>(at, count, MultiplyOp{}, a, b, out);
  });
}

cudaError_t launch_swiglu(Launch at, DType dtype, const void* gate, const void* up, void* out,
                          std::int64_t count) {
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    return map<2, T, T>(at, count, SwigluOp{}, gate, up, out);
  });
}

cudaError_t launch_swiglu_backward(Launch at, DType dtype, const void* gate, const void* up,
                                   const void* dout, void* dgate, void* dup, std::int64_t count) {
  if (count == 0) return cudaSuccess;
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = 16 / static_cast<int>(sizeof(T));
    const unsigned grid = grid_for((count + N - 1) / N, kThreads, at.multiprocessors);
    return launch_kernel(swiglu_backward_kernel<N, T>, grid, kThreads, 0, at.stream, count,
                         aligned16(gate, up, dout, dgate, dup), static_cast<const T*>(gate),
                         static_cast<const T*>(up), static_cast<const T*>(dout),
                         static_cast<T*>(dgate), static_cast<T*>(dup));
  });
}

cudaError_t launch_add_bias(Launch at, DType dtype, DType bias_dtype, const void* x,
                            const void* bias, void* out, std::int64_t rows, std::int64_t columns) {
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = 16 / static_cast<int>(sizeof(T));
    const RowPacks packs(rows, columns, N);
    if (packs.total == 0) return cudaSuccess;
    const unsigned grid = grid_for(packs.total, kThreads, at.multiprocessors);
    const bool aligned = aligned16(x, bias, out) && packs.whole();
    const auto launch = [&]<class B>(const B* typed_bias) {
      return launch_kernel(add_bias_kernel<N, T, B>, grid, kThreads, 0, at.stream, packs, aligned,
                           static_cast<const T*>(x), typed_bias, static_cast<T*>(out));
    };
    if (bias_dtype == DType::f32) return launch(static_cast<const float*>(bias));
    return launch(static_cast<const T*>(bias));
  });
}

cudaError_t launch_dropout(Launch at, DType dtype, const RowDropout& dropout, const void* x,
                           const void* residual, void* out, std::int64_t rows,
                           std::int64_t columns) {
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = 16 / static_cast<int>(sizeof(T));
    const RowPacks packs(rows, columns, N);
    if (packs.total == 0) return cudaSuccess;
    return launch_kernel(
        dropout_kernel<N, T>, grid_for(packs.total, kThreads, at.multiprocessors), kThreads, 0,
        at.stream, packs, aligned16(x, residual, out) && packs.whole(), dropout,
        static_cast<const T*>(x), static_cast<const T*>(residual), static_cast<T*>(out));
  });
}

cudaError_t launch_transpose(Launch at, std::size_t element_bytes, const void* x, void* out,
                             std::int64_t matrices, std::int64_t rows, std::int64_t columns) {
  if (matrices * rows * columns == 0) return cudaSuccess;
  switch (element_bytes) {
    case 1:
      return transpose<std::uint8_t, 64>(at, x, out, matrices, rows, columns);
    case 2:
      return transpose<std::uint16_t, 64>(at, x, out, matrices, rows, columns);
    case 4:
      return transpose<std::uint32_t, 32>(at, x, out, matrices, rows, columns);
    case 8:
      return transpose<std::uint64_t, 32>(at, x, out, matrices, rows, columns);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t launch_fill_normal(Launch at, const RandomSite& site, std::uint64_t first_element,
                               float mean, float std, float* out, std::int64_t count) {
  return random_fill<true>(at, site, first_element, mean, std, out, count);
}
cudaError_t launch_fill_uniform(Launch at, const RandomSite& site, std::uint64_t first_element,
                                float low, float width, float* out, std::int64_t count) {
  return random_fill<false>(at, site, first_element, low, width, out, count);
}

}  // namespace shoal::kernels
