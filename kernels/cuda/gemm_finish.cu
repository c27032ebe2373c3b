#include "shoal/kernels/cuda/gemm_finish.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"

namespace shoal::kernels::cuda {
namespace {

// 1 / (1 + exp(-x)). f32 results need the accurate functions. For 16-bit results, rounding hides
// the error of the fast ones.
template <class T>
__device__ inline float sigmoid(float x) {
  if constexpr (sizeof(T) == 4) return 1.0f / (1.0f + expf(-x));
  return __fdividef(1.0f, 1.0f + __expf(-x));
}

constexpr float kScale = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float kCubic = 0.044715f;
constexpr float kHalfRoot = 0.7071067811865476f;          // sqrt(1 / 2)
constexpr float kInverseRootTwoPi = 0.3989422804014327f;  // 1 / sqrt(2 pi)

// 1 + erf(x / sqrt 2), and e^(-x²/2). 16-bit results use Abramowitz and Stegun's formula 7.1.26
// (error 1.5e-7), which takes half the instructions of erff. Apart from memory accesses, these
// functions dominate the pass.
template <class T>
__device__ inline float one_and_erf(float x, float& exponential) {
  if constexpr (sizeof(T) == 4) {
    exponential = expf(-0.5f * x * x);
    return 1.0f + erff(x * kHalfRoot);
  } else {
    exponential = __expf(-0.5f * x * x);
    const float t = __fdividef(1.0f, fmaf(fabsf(x), 0.3275911f * kHalfRoot, 1.0f));
    const float sum =
        t *
        fmaf(t, fmaf(t, fmaf(t, fmaf(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f),
             0.254829592f);
    const float tail = sum * exponential;  // 1 - erf(|x| / sqrt 2)
    return x < 0.0f ? tail : 2.0f - tail;
  }
}

// 0.5 x (1 + tanh(u)) = x · sigmoid(2u)
template <class T>
__device__ inline float activate(GemmActivation kind, float x) {
  if (kind == GemmActivation::gelu_tanh)
    return x * sigmoid<T>(2 * kScale * (x + kCubic * x * x * x));
  if (kind == GemmActivation::gelu_erf) {
    float exponential;
    return 0.5f * x * one_and_erf<T>(x, exponential);
  }
  if (kind == GemmActivation::tanh) return tanhf(x);
  if (kind == GemmActivation::relu) return x < 0.0f ? 0.0f : x;
  return x;
}

template <class T>
__device__ inline float derivative(GemmActivation kind, float x) {
  if (kind == GemmActivation::none) return 1.0f;
  if (kind == GemmActivation::relu) return x > 0.0f ? 1.0f : 0.0f;
  // Clamped to avoid inf times 0, since the result is 0 or 1 outside of this range. NaN stays.
  x = x > 30.0f ? 30.0f : x < -30.0f ? -30.0f : x;
  if (kind == GemmActivation::tanh) {
    const float e = expf(-2.0f * fabsf(x)), s = 2.0f / (1.0f + e);
    return e * s * s;
  }
  if (kind == GemmActivation::gelu_tanh) {
    const float square = x * x, s = sigmoid<T>(2 * kScale * (x + kCubic * square * x));
    return s + 2 * x * s * (1 - s) * kScale * (1 + 3 * kCubic * square);
  }
  float exponential;
  const float above = one_and_erf<T>(x, exponential);
  return fmaf(0.5f, above, x * kInverseRootTwoPi * exponential);
}

__device__ inline float bias_at(const GemmFinish& p, std::int64_t column) {
  if (p.bias_type == DType::f32) return static_cast<const float*>(p.bias)[column];
  if (p.bias_type == DType::bf16) return widened(static_cast<const __nv_bfloat16*>(p.bias)[column]);
  return widened(static_cast<const __half*>(p.bias)[column]);
}

// Each thread handles N adjacent columns and a strided set of rows.
template <class T, class Product, int N>
__global__ void __launch_bounds__(256) finish(const GemmFinish p) {
  const std::int64_t column =
      (blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x) * N;
  if (column >= p.columns) return;
  float bias[N] = {};
  if (p.bias)
    for (int i = 0; i < N; ++i) bias[i] = bias_at(p, column + i);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * blockDim.y;
  for (std::int64_t row = blockIdx.y * static_cast<std::int64_t>(blockDim.y) + threadIdx.y;
       row < p.rows; row += step) {
    float value[N], gate[N];
    if (p.product) {
      load(static_cast<const Product*>(p.product) + row * p.product_leading + column, value);
#pragma unroll
      for (int i = 0; i < N; ++i) value[i] += bias[i];
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) value[i] = bias[i];
    }
    if (p.kept) store(value, static_cast<T*>(p.kept) + row * p.kept_leading + column);
    if (p.gate) {
      load(static_cast<const T*>(p.gate) + row * p.gate_leading + column, gate);
#pragma unroll
      for (int i = 0; i < N; ++i) value[i] *= derivative<T>(p.activation, gate[i]);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) value[i] = activate<T>(p.activation, value[i]);
    }
    store(value, static_cast<T*>(p.out) + row * p.out_leading + column);
  }
}

template <int N>
bool fits(const void* data, std::int64_t leading) {
  return !data || (aligned16(data) && leading % N == 0);
}

template <class T, class Product, int N>
cudaError_t launch_finish(const GemmFinish& p, cudaStream_t stream) {
  const dim3 block(64, 4);
  const std::int64_t across = (p.columns + N * block.x - 1) / (N * block.x),
                     down = (p.rows + 15) / 16;  // four rows per thread
  const dim3 grid(static_cast<unsigned>(across),
                  static_cast<unsigned>(down < 65535 ? down : 65535));
  return launch_kernel(finish<T, Product, N>, grid, block, 0, stream, p);
}

constexpr int kTile = 16;

// A block computes a tile of c, each thread one element; the sum runs over p in order.
template <class In, class Out>
__global__ void __launch_bounds__(kTile* kTile) plain_product(const PlainProduct p) {
  __shared__ float a_tile[kTile][kTile + 1], b_tile[kTile][kTile + 1];
  const int x = threadIdx.x, y = threadIdx.y;
  const std::int64_t j = blockIdx.x * static_cast<std::int64_t>(kTile) + x;
  for (std::int64_t g = blockIdx.z; g < p.groups; g += gridDim.z) {
    const In* a = static_cast<const In*>(p.a) + g * p.a_group;
    const In* b = static_cast<const In*>(p.b) + g * p.b_group;
    Out* c = static_cast<Out*>(p.c) + g * p.c_group;
    for (std::int64_t first = blockIdx.y * static_cast<std::int64_t>(kTile); first < p.m;
         first += gridDim.y * static_cast<std::int64_t>(kTile)) {
      const std::int64_t i = first + y;
      float sum = 0;
      for (std::int64_t from = 0; from < p.k; from += kTile) {
        const bool a_inside = i < p.m && from + x < p.k, b_inside = from + y < p.k && j < p.n;
        a_tile[y][x] = a_inside ? widened(a[i * p.a_row + (from + x) * p.a_column]) : 0.0f;
        b_tile[y][x] = b_inside ? widened(b[(from + y) * p.b_row + j * p.b_column]) : 0.0f;
        __syncthreads();
        for (int q = 0; q < kTile; ++q) sum = fmaf(a_tile[y][q], b_tile[q][x], sum);
        __syncthreads();
      }
      if (i >= p.m || j >= p.n) continue;  // no barrier follows in this iteration
      float value = p.alpha * sum;
      Out* const place = c + i * p.c_row + j;
      if (p.beta != 0) value += p.beta * widened(*place);
      *place = narrowed<Out>(value);
    }
  }
}

template <class In, class Out>
cudaError_t launch_product(const PlainProduct& p, cudaStream_t stream) {
  const auto limited = [](std::int64_t count) {
    return static_cast<unsigned>(count < 65535 ? count : 65535);
  };
  const dim3 grid(static_cast<unsigned>((p.n + kTile - 1) / kTile),
                  limited((p.m + kTile - 1) / kTile), limited(p.groups));
  return launch_kernel(plain_product<In, Out>, grid, dim3(kTile, kTile), 0, stream, p);
}

}  // namespace

cudaError_t launch_gemm_finish(const GemmFinish& args, cudaStream_t stream) {
  return with_training_type(args.type, [&](auto type) {
    using T = decltype(type);
    constexpr int N = 16 / sizeof(T);
    const bool wide = args.columns % N == 0 && fits<N>(args.product, args.product_leading) &&
                      fits<N>(args.gate, args.gate_leading) &&
                      fits<N>(args.kept, args.kept_leading) && fits<N>(args.out, args.out_leading);
    if (args.product_type == DType::f32)
      return wide ? launch_finish<T, float, N>(args, stream)
                  : launch_finish<T, float, 1>(args, stream);
    return wide ? launch_finish<T, T, N>(args, stream) : launch_finish<T, T, 1>(args, stream);
  });
}

cudaError_t launch_plain_product(const PlainProduct& args, cudaStream_t stream) {
  return with_training_type(args.input, [&](auto type) {
    using T = decltype(type);
    if (args.output == DType::f32) return launch_product<T, float>(args, stream);
    return launch_product<T, T>(args, stream);
  });
}

}  // namespace shoal::kernels::cuda
