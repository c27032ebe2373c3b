// Update rules and norms. The arithmetic matches the CPU's operation by operation, including
// rounding (kernels/cpu/optimizer_simd.cc), so the results have the same bits except for
// differences of pow and sqrt in f64. An update moves every byte once and is memory-bound.
#include "shoal/kernels/cuda/update_parts.cuh"

namespace shoal::kernels {
namespace {

using namespace update_parts;

struct AdamWFactors {
  float gradient_scale, one_minus_beta1, beta2, one_minus_beta2;
  float step_size;    // lr / (1 - beta1^t)
  float correction2;  // sqrt(1 - beta2^t)
  float epsilon;
  float inverse_correction1, inverse_correction2;  // for LAMB
  double learning_rate;
  bool run;
};

// Called by one thread of each block, since pow in f64 is slow.
__device__ void make_factors(const AdamWSettings& settings, AdamWFactors& f) {
  const StepState state = *settings.state;
  f.run = runs(state, settings.fault);
  if (!f.run) return;
  const double step = state.step;
  const double correction1 = 1 - pow(settings.beta1, step);
  const double correction2 = 1 - pow(settings.beta2, step);
  f.learning_rate = state.learning_rate;
  f.gradient_scale = state.gradient_scale;
  f.one_minus_beta1 = static_cast<float>(1 - settings.beta1);
  f.beta2 = static_cast<float>(settings.beta2);
  f.one_minus_beta2 = static_cast<float>(1 - settings.beta2);
  f.step_size = static_cast<float>(f.learning_rate / correction1);
  f.correction2 = static_cast<float>(sqrt(correction2));
  f.epsilon = static_cast<float>(settings.epsilon);
  f.inverse_correction1 = static_cast<float>(1 / correction1);
  f.inverse_correction2 = static_cast<float>(1 / correction2);
}

// Advances both moments by gradient g.
__device__ inline void advance(const AdamWFactors& f, float g, float& first, float& second) {
  first = __fmaf_rn(f.one_minus_beta1, __fsub_rn(g, first), first);
  second = __fmaf_rn(__fmul_rn(f.one_minus_beta2, g), g, __fmul_rn(second, f.beta2));
}

template <class Tensor>
struct AdamWStep {
  const Tensor& x;
  const AdamWFactors& f;
  const StepState* state;
  float decay;

  template <bool whole>
  __device__ void operator()(std::int64_t i, int some) const {
    Four gradient, first, second, master;
    read<whole>(x.gradient + i, some, gradient);
    read<whole>(x.first_moment + i, some, first);
    read<whole>(x.second_moment + i, some, second);
    read_parameter<whole>(x, i, some, master);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      advance(f, __fmul_rn(gradient[k], f.gradient_scale), first[k], second[k]);
      const float denominator =
          __fadd_rn(__fdiv_rn(__fsqrt_rn(second[k]), f.correction2), f.epsilon);
      master[k] =
          __fmaf_rn(-f.step_size, __fdiv_rn(first[k], denominator), __fmul_rn(master[k], decay));
    }
    write<whole>(first, x.first_moment + i, some);
    write<whole>(second, x.second_moment + i, some);
    write_parameter<whole>(master, x, state, i, some);
  }
};

template <class Tensor>
struct LionStep {
  const Tensor& x;
  const AdamWFactors& f;
  const StepState* state;
  float decay;

  template <bool whole>
  __device__ void operator()(std::int64_t i, int some) const {
    const auto rate = static_cast<float>(f.learning_rate);
    Four gradient, first, master;
    read<whole>(x.gradient + i, some, gradient);
    read<whole>(x.first_moment + i, some, first);
    read_parameter<whole>(x, i, some, master);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float away = __fsub_rn(__fmul_rn(gradient[k], f.gradient_scale), first[k]);
      const float direction = __fmaf_rn(f.one_minus_beta1, away, first[k]);
      const float moved = direction != 0 ? copysignf(rate, direction) : 0;
      master[k] = __fmaf_rn(master[k], decay, -moved);
      first[k] = __fmaf_rn(f.one_minus_beta2, away, first[k]);
    }
    write<whole>(first, x.first_moment + i, some);
    write_parameter<whole>(master, x, state, i, some);
  }
};

// One step of AdamWStep or LionStep.
template <template <class> class Step, class Table>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    moments_kernel(const __grid_constant__ Table table) {
  __shared__ AdamWFactors factors;
  if (threadIdx.x == 0) make_factors(table.settings, factors);
  __syncthreads();
  if (!factors.run) return;
  const AdamWFactors f = factors;
  chunks(table, kAdamWChunk,
         [&](const auto& x, std::uint32_t, std::uint32_t, std::int64_t begin, std::int64_t end) {
           const auto decay = static_cast<float>(1 - f.learning_rate * x.weight_decay);
           fours(begin + 4 * threadIdx.x, end, 4 * kThreads, x.whole != 0,
                 Step<typename Table::Tensor>{x, f, table.settings.state, decay});
         });
}

struct SgdStep {
  const SgdTensor& x;
  float scale, learning_rate;
  bool first;

  template <bool whole>
  __device__ void operator()(std::int64_t i, int some) const {
    Four g, master, buffer{};
    read<whole>(x.gradient + i, some, g);
    read<whole>(x.master + i, some, master);
    if (x.momentum_buffer && !first) read<whole>(x.momentum_buffer + i, some, buffer);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      g[k] = __fmaf_rn(x.weight_decay, master[k], __fmul_rn(g[k], scale));
      if (x.momentum_buffer) {
        buffer[k] =
            first ? g[k] : __fmaf_rn(x.one_minus_dampening, g[k], __fmul_rn(x.momentum, buffer[k]));
        g[k] = x.nesterov ? __fmaf_rn(x.momentum, buffer[k], g[k]) : buffer[k];
      }
      master[k] = __fmaf_rn(-learning_rate, g[k], master[k]);
    }
    if (x.momentum_buffer) write<whole>(buffer, x.momentum_buffer + i, some);
    write<whole>(master, x.master + i, some);
    write_copy<whole>(master, x.parameter, x.copy, i, some);
  }
};

__global__ void __launch_bounds__(kThreads) sgd_kernel(const __grid_constant__ SgdTensor x) {
  const StepState state = *x.state;
  if (!runs(state, x.fault)) return;
  const SgdStep step{x, state.gradient_scale, state.learning_rate, state.step == 1};
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  fours(4 * thread, x.count, std::int64_t{gridDim.x} * 4 * kThreads, x.whole, step);
}

struct LambFactors {
  const AdamWFactors& f;
  float weight_decay;

  __device__ float direction(float first, float second, float master) const {
    const float denominator =
        __fadd_rn(__fsqrt_rn(__fmul_rn(second, f.inverse_correction2)), f.epsilon);
    const float ratio = __fdiv_rn(__fmul_rn(first, f.inverse_correction1), denominator);
    return __fmaf_rn(weight_decay, master, ratio);
  }
};

template <class Tensor>
struct LambMomentsStep {
  const Tensor& x;
  LambFactors lamb;
  double &weight, &update;

  template <bool whole>
  __device__ void operator()(std::int64_t i, int some) const {
    const AdamWFactors& f = lamb.f;
    Four gradient, first, second, master;
    read<whole>(x.gradient + i, some, gradient);
    read<whole>(x.first_moment + i, some, first);
    read<whole>(x.second_moment + i, some, second);
    read_parameter<whole>(x, i, some, master);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      advance(f, __fmul_rn(gradient[k], f.gradient_scale), first[k], second[k]);
      if (k >= some) continue;  // beyond `some`, r may be NaN: 0 / (0 + 0)
      const double p = master[k], r = lamb.direction(first[k], second[k], master[k]);
      weight = fma(p, p, weight);
      update = fma(r, r, update);
    }
    write<whole>(first, x.first_moment + i, some);
    write<whole>(second, x.second_moment + i, some);
  }
};

template <class Table>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    lamb_moments_kernel(const __grid_constant__ Table table, double* partial) {
  __shared__ AdamWFactors factors;
  __shared__ double room[2][kThreads / 32];
  if (threadIdx.x == 0) make_factors(table.settings, factors);
  __syncthreads();
  if (!factors.run) return;
  const AdamWFactors f = factors;
  double *const of_weights = room[0], *const of_updates = room[1];
  chunks(
      table, kLambChunk,
      [&](const auto& x, std::uint32_t, std::uint32_t chunk, std::int64_t begin, std::int64_t end) {
        double weight = 0, update = 0;
        fours(
            begin + 4 * threadIdx.x, end, 4 * kThreads, x.whole != 0,
            LambMomentsStep{x, LambFactors{f, static_cast<float>(x.weight_decay)}, weight, update});
        weight = block_sum(weight, of_weights);
        update = block_sum(update, of_updates);
        if (threadIdx.x == 0) {
          partial[2 * std::size_t{chunk}] = weight;
          partial[2 * std::size_t{chunk} + 1] = update;
        }
        __syncthreads();  // the next chunk's sums use the same memory
      });
}

// One block per tensor.
template <class Table>
__global__ void __launch_bounds__(kThreads)
    lamb_squares_kernel(const __grid_constant__ Table table, const double* partial,
                        double* squares) {
  if (table.settings.state->skip != 0) return;
  __shared__ double room[2][kThreads / 32];
  const auto& x = table.tensor[blockIdx.x];
  const auto count = static_cast<int>((x.count + kLambChunk - 1) / kLambChunk);
  const double* const mine = partial + 2 * std::size_t{x.first_chunk};
  double weight = 0, update = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    weight += mine[2 * i];
    update += mine[2 * i + 1];
  }
  weight = block_sum(weight, room[0]);
  update = block_sum(update, room[1]);
  if (threadIdx.x != 0) return;
  squares[2 * blockIdx.x] = weight;
  squares[2 * blockIdx.x + 1] = update;
}

template <class Tensor>
struct LambApplyStep {
  const Tensor& x;
  LambFactors lamb;
  const StepState* state;
  float rate;

  template <bool whole>
  __device__ void operator()(std::int64_t i, int some) const {
    Four first, second, master;
    read<whole>(x.first_moment + i, some, first);
    read<whole>(x.second_moment + i, some, second);
    read_parameter<whole>(x, i, some, master);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      master[k] = __fmaf_rn(-rate, lamb.direction(first[k], second[k], master[k]), master[k]);
    write_parameter<whole>(master, x, state, i, some);
  }
};

template <class Table>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    lamb_apply_kernel(const __grid_constant__ Table table, const double* squares,
                      double max_trust_ratio) {
  __shared__ AdamWFactors factors;
  if (threadIdx.x == 0) make_factors(table.settings, factors);
  __syncthreads();
  if (!factors.run) return;
  const AdamWFactors f = factors;
  chunks(table, kLambChunk,
         [&](const auto& x, std::uint32_t t, std::uint32_t, std::int64_t begin, std::int64_t end) {
           const double weight = sqrt(squares[2 * t]), length = sqrt(squares[2 * t + 1]);
           const double trust =
               weight > 0 && length > 0 ? fmin(weight / length, max_trust_ratio) : 1;
           const auto rate = static_cast<float>(trust * f.learning_rate);
           fours(begin + 4 * threadIdx.x, end, 4 * kThreads, x.whole != 0,
                 LambApplyStep{x, LambFactors{f, static_cast<float>(x.weight_decay)},
                               table.settings.state, rate});
         });
}

// Elements beyond `some` become 0.
template <bool whole>
__device__ inline void read_any(const SquaresTensor& x, std::int64_t first, int some, Four& four) {
  if (x.type == DType::f32)
    read<whole>(static_cast<const float*>(x.data) + first, some, four);
  else if (x.type == DType::bf16)
    read<whole>(static_cast<const __nv_bfloat16*>(x.data) + first, some, four);
  else
    read<whole>(static_cast<const __half*>(x.data) + first, some, four);
}

struct SquaresStep {
  const SquaresTensor& x;
  double (&sum)[4];

  template <bool whole>
  __device__ void operator()(std::int64_t i, int some) const {
    Four four;
    read_any<whole>(x, i, some, four);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      // Squares of f32 are exact in f64 and cannot overflow.
      const double wide = four[k];
      sum[k] = fma(wide, wide, sum[k]);
    }
  }
};

template <int capacity>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(const __grid_constant__ SquaresTable<capacity> table, double* partial) {
  __shared__ double room[kThreads / 32];
  double sum[4] = {};
  std::uint32_t t = 0;
  for (std::uint32_t chunk = blockIdx.x; chunk < table.chunks; chunk += gridDim.x) {
    while (t + 1 < table.tensors && table.tensor[t + 1].first_chunk <= chunk) ++t;
    const SquaresTensor& x = table.tensor[t];
    const std::int64_t begin = (chunk - x.first_chunk) * kSquaresChunk;
    const std::int64_t end = begin + kSquaresChunk < x.count ? begin + kSquaresChunk : x.count;
    fours(begin + 4 * threadIdx.x, end, 4 * kThreads, x.whole != 0, SquaresStep{x, sum});
  }
  const double total = block_sum((sum[0] + sum[1]) + (sum[2] + sum[3]), room);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    squares_total_kernel(const double* partial, int count, double* out, bool accumulate) {
  __shared__ double room[kThreads / 32];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) sum += partial[i];
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) *out = accumulate ? *out + sum : sum;
}

struct NonFiniteStep {
  const SquaresTensor& x;
  bool& found;

  template <bool whole>
  __device__ void operator()(std::int64_t i, int some) const {
    Four four;
    read_any<whole>(x, i, some, four);
#pragma unroll
    for (int k = 0; k < 4; ++k) found |= (__float_as_uint(four[k]) & 0x7f800000u) == 0x7f800000u;
  }
};

__global__ void __launch_bounds__(kThreads)
    non_finite_kernel(const __grid_constant__ SquaresTensor x, std::uint32_t* found) {
  bool mine = false;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  fours(4 * thread, x.count, std::int64_t{gridDim.x} * 4 * kThreads, x.whole != 0,
        NonFiniteStep{x, mine});
  if (mine) *found = 1;
}

__global__ void set_step_kernel(StepState* state, StepNumbers numbers) {
  set_numbers(*state, numbers);
}

__global__ void begin_update_kernel(const double* sum_of_squares, double max_norm, double* out,
                                    StepState* state, LossScaleRule scaling) {
  const double unscale =
                   static_cast<double>(state->unscale) / static_cast<double>(state->loss_scale),
               norm = sqrt(*sum_of_squares) * unscale;
  *out = norm;
  state->skip = isfinite(norm) ? 0 : 1;
  follow(scaling, state->skip != 0, *state);
  if (state->skip != 0) return;
  const double clip = max_norm > 0 ? fmin(1.0, max_norm / (norm + 1e-6)) : 1.0;
  state->gradient_scale = static_cast<float>(unscale * clip);
  ++state->step;
}

int grid_of_elements(std::int64_t count, int multiprocessors) {
  return grid((count + 4 * kThreads - 1) / (4 * kThreads), multiprocessors);
}

}  // namespace

template <class Table>
cudaError_t launch_adamw(const Table& table, int multiprocessors, cudaStream_t stream) {
  return launch_kernel(moments_kernel<AdamWStep, Table>, grid(table.chunks, multiprocessors),
                       kThreads, 0, stream, table);
}
template <class Table>
cudaError_t launch_lion(const Table& table, int multiprocessors, cudaStream_t stream) {
  return launch_kernel(moments_kernel<LionStep, Table>, grid(table.chunks, multiprocessors),
                       kThreads, 0, stream, table);
}

cudaError_t launch_sgd(const SgdTensor& args, int multiprocessors, cudaStream_t stream) {
  return launch_kernel(sgd_kernel, grid_of_elements(args.count, multiprocessors), kThreads, 0,
                       stream, args);
}

template <class Table>
cudaError_t launch_lamb_moments(const Table& table, double* partial, int multiprocessors,
                                cudaStream_t stream) {
  return launch_kernel(lamb_moments_kernel<Table>, grid(table.chunks, multiprocessors), kThreads, 0,
                       stream, table, partial);
}
template <class Table>
cudaError_t launch_lamb_squares(const Table& table, const double* partial, double* squares,
                                cudaStream_t stream) {
  return launch_kernel(lamb_squares_kernel<Table>, static_cast<int>(table.tensors), kThreads, 0,
                       stream, table, partial, squares);
}
template <class Table>
cudaError_t launch_lamb_apply(const Table& table, const double* squares, double max_trust_ratio,
                              int multiprocessors, cudaStream_t stream) {
  return launch_kernel(lamb_apply_kernel<Table>, grid(table.chunks, multiprocessors), kThreads, 0,
                       stream, table, squares, max_trust_ratio);
}

#define SHOAL_OF_TABLE(Table)                                                                   \
  template cudaError_t launch_adamw(const Table&, int, cudaStream_t);                           \
  template cudaError_t launch_lion(const Table&, int, cudaStream_t);                            \
  template cudaError_t launch_lamb_moments(const Table&, double*, int, cudaStream_t);           \
  template cudaError_t launch_lamb_squares(const Table&, const double*, double*, cudaStream_t); \
  template cudaError_t launch_lamb_apply(const Table&, const double*, double, int, cudaStream_t);
SHOAL_OF_TABLE(FewTensors)
SHOAL_OF_TABLE(ManyTensors)
SHOAL_OF_TABLE(FewRounded)
SHOAL_OF_TABLE(ManyRounded)
#undef SHOAL_OF_TABLE

template <int capacity>
cudaError_t launch_squares(const SquaresTable<capacity>& table, double* partial,
                           cudaStream_t stream) {
  return launch_kernel(squares_kernel<capacity>, squares_blocks(table.chunks), kThreads, 0, stream,
                       table, partial);
}
template cudaError_t launch_squares(const SquaresTable<kFewSquares>&, double*, cudaStream_t);
template cudaError_t launch_squares(const SquaresTable<kManySquares>&, double*, cudaStream_t);

cudaError_t launch_squares_total(const double* partial, int count, double* out, bool accumulate,
                                 cudaStream_t stream) {
  return launch_kernel(squares_total_kernel, 1, kThreads, 0, stream, partial, count, out,
                       accumulate);
}

cudaError_t launch_non_finite(const SquaresTensor& tensor, std::uint32_t* found,
                              int multiprocessors, cudaStream_t stream) {
  return launch_kernel(non_finite_kernel, grid_of_elements(tensor.count, multiprocessors), kThreads,
                       0, stream, tensor, found);
}

cudaError_t launch_set_step(StepState* state, const StepNumbers& numbers, cudaStream_t stream) {
  return launch_kernel(set_step_kernel, 1, 1, 0, stream, state, numbers);
}

cudaError_t launch_begin_update(const double* sum_of_squares, double max_norm, double* norm,
                                StepState* state, const LossScaleRule& scaling,
                                cudaStream_t stream) {
  return launch_kernel(begin_update_kernel, 1, 1, 0, stream, sum_of_squares, max_norm, norm, state,
                       scaling);
}

}  // namespace shoal::kernels
