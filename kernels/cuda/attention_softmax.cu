// Processes rows of scores, one warp each. A row is read twice and stays in the caches meanwhile.
// Dropout's bits are not stored: each pass draws them from their coordinates.
#include "shoal/kernels/cuda/attention_softmax.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/philox.cuh"
#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels {
namespace {

constexpr int kThreads = 256, kRowsOfBlock = kThreads / 32;
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kInfinity = __builtin_inff();

__device__ inline float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// One query of one head.
struct Row {
  std::int64_t start;      // offset of its scores in the piece
  std::int64_t statistic;  // offset of its log_sum_exp
  std::int64_t begin = 0;  // keys before it are not seen
  std::int64_t end;        // keys from here on are not seen
  const std::uint8_t* mask;
  const float* bias;  // of key 0; null: none
  std::uint32_t sample;
  std::uint64_t first_element;  // dropout's coordinate of key 0

  __device__ Row(const ScoreRows& s, std::int64_t index) {
    start = index * s.leading;
    const std::int64_t query = s.first_query + index % s.queries,
                       head = s.first_head + index / s.queries % s.heads,
                       batch = s.first_batch + index / s.queries / s.heads;
    statistic = (batch * s.whole_heads + head) * s.whole_queries + query;
    const std::int64_t own = query + s.whole_keys - s.whole_queries,  // the key at its position
        ahead = s.causal ? 1 : s.window, limit = s.keys - own;
    end = ahead == 0 || ahead > limit ? s.keys : own + ahead < 0 ? 0 : own + ahead;
    if (s.key_lengths) {
      const std::int64_t length = s.key_lengths[batch];
      end = length < 0 ? 0 : length < end ? length : end;
    }
    if (s.sequences) {
      const FlashRange sequence = s.sequences[batch * s.whole_queries + query];
      begin = sequence.begin;
      end = sequence.end < end ? sequence.end : end;
    }
    if (s.window && own + 1 - s.window > begin) begin = own + 1 - s.window;
    bias = s.relative_bias ? s.relative_bias + head * (s.whole_queries + s.whole_keys - 1) +
                                 s.whole_queries - 1 - query
                           : nullptr;
    mask = s.key_mask ? s.key_mask + batch * s.whole_keys : nullptr;
    sample = s.dropout.site.sample_first +
             static_cast<std::uint32_t>(batch) * s.dropout.site.sample_stride;
    const std::int64_t position =
        query + (s.whole_keys > s.whole_queries ? s.whole_keys - s.whole_queries : 0);
    first_element = static_cast<std::uint64_t>(
        ((head + s.dropout.head_offset) * s.dropout.max_positions + position) *
        s.dropout.max_positions);
  }
  __device__ bool sees(std::int64_t key) const {
    return key >= begin && key < end && (!mask || mask[key] != 0);
  }
  // The score of a key that is seen, times `unit`; x lacks the scale, and the soft cap or the bias.
  __device__ float score(float x, const ScoreRows& s, float unit, std::int64_t key) const {
    if (s.soft_cap > 0) return s.soft_cap * unit * tanhf(x * (s.scale / s.soft_cap));
    return bias ? fmaf(x, s.scale * unit, bias[key] * unit) : x * (s.scale * unit);
  }
};

// Bit j is set if key + j is kept.
__device__ inline unsigned kept_of_four(const ScoreRows& s, const PhiloxKey& philox, const Row& row,
                                        std::int64_t key) {
  if (!s.drops) return 0xfu;
  std::uint32_t random[4];
  philox_bits<4>(philox, row.sample, row.first_element + static_cast<std::uint64_t>(key), random);
  unsigned kept = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) kept |= random[j] >= s.dropout.threshold ? 1u << j : 0u;
  return kept;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(ScoreRows s, std::int64_t count, const float* scores, T* probabilities) {
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / 32;
  if (index >= count) return;
  const Row row(s, index);
  const int lane = static_cast<int>(threadIdx.x % 32);
  scores += row.start;
  probabilities += row.start;

  float largest = -kInfinity, sum = 0;
  for (std::int64_t key = 4 * lane; key < row.end; key += 128) {
    float x[4];
    load<4>(scores + key, s.keys - key, true, x);
    float top = largest;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[j] = row.sees(key + j) ? row.score(x[j], s, kLog2E, key + j) : -kInfinity;
      top = fmaxf(top, x[j]);
    }
    // If the row has seen no key yet, every exponential is 0 (or NaN for a NaN score).
    const float shift = top == -kInfinity ? 0.0f : top;
    sum *= exp2f(largest - shift);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum += exp2f(x[j] - shift);
    largest = top;
  }
  const float top = warp_max(largest), shift = top == -kInfinity ? 0.0f : top;
  sum = warp_sum(sum * exp2f(largest - shift));
  if (s.log_sum_exp && lane == 0)
    s.log_sum_exp[row.statistic] = sum == 0 ? -kInfinity : (top + log2f(sum)) / kLog2E;

  const float factor = sum == 0 ? 0.0f : s.keep_scale / sum;
  const PhiloxKey philox(s.dropout.site);
  for (std::int64_t key = 4 * lane; key < s.keys; key += 128) {
    float x[4];
    load<4>(scores + key, s.keys - key, true, x);
    const unsigned kept = key < row.end ? kept_of_four(s, philox, row, key) : 0;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      x[j] = row.sees(key + j) && (kept >> j & 1u) != 0
                 ? exp2f(row.score(x[j], s, kLog2E, key + j) - shift) * factor
                 : 0.0f;
    store<4>(x, s.keys - key, true, probabilities + key);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_gradient_kernel(ScoreRows s, std::int64_t count, const float* scores,
                            const float* gradient, T* probabilities, T* dscores) {
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / 32;
  if (index >= count) return;
  const Row row(s, index);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float log_sum_exp = s.log_sum_exp[row.statistic];
  const PhiloxKey philox(s.dropout.site);
  scores += row.start;
  gradient += row.start;
  probabilities += row.start;
  dscores += row.start;

  // p: the probability. after: the probability after dropout. dp: the gradient of p. slope: the
  // derivative of the score by q·k.
  const auto read = [&](std::int64_t key, float(&p)[4], float(&after)[4], float(&dp)[4],
                        float(&slope)[4]) {
    load<4>(scores + key, s.keys - key, true, p);
    load<4>(gradient + key, s.keys - key, true, dp);
    const unsigned kept = key < row.end ? kept_of_four(s, philox, row, key) : 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool counts = log_sum_exp != -kInfinity && row.sees(key + j);
      const float score = counts ? row.score(p[j], s, 1, key + j) : 0.0f,
                  bent = s.soft_cap > 0 ? score / s.soft_cap : 0.0f;
      slope[j] = s.scale * fmaf(-bent, bent, 1.0f);
      p[j] = counts ? exp2f((score - log_sum_exp) * kLog2E) : 0.0f;
      const float keep = (kept >> j & 1u) != 0 ? s.keep_scale : 0.0f;
      after[j] = keep == 0 ? 0.0f : p[j] * keep;
      dp[j] = keep == 0 ? 0.0f : dp[j] * keep;
    }
  };
  float delta = 0;  // sum of p·dp, which equals that of dout·out
  for (std::int64_t key = 4 * lane; key < row.end; key += 128) {
    float p[4], after[4], dp[4], slope[4];
    read(key, p, after, dp, slope);
#pragma unroll
    for (int j = 0; j < 4; ++j) delta += p[j] == 0 ? 0.0f : p[j] * dp[j];
  }
  delta = warp_sum(delta);
  for (std::int64_t key = 4 * lane; key < s.keys; key += 128) {
    float p[4], after[4], dp[4], slope[4];
    read(key, p, after, dp, slope);
#pragma unroll
    for (int j = 0; j < 4; ++j) dp[j] = p[j] == 0 ? 0.0f : p[j] * (dp[j] - delta) * slope[j];
    store<4>(after, s.keys - key, true, probabilities + key);
    store<4>(dp, s.keys - key, true, dscores + key);
  }
}

// One thread sums one relative position of one head over the piece's batch rows and queries, so
// neighbouring threads read neighbouring keys.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_relative_bias_kernel(ScoreRows s, const T* dscores, float* sums) {
  const std::int64_t positions = s.whole_queries + s.whole_keys - 1,
                     index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= s.heads * positions) return;
  const std::int64_t head = index / positions, position = index % positions;
  float sum = 0;
  for (std::int64_t batch = 0; batch < s.batch; ++batch)
    for (std::int64_t query = 0; query < s.queries; ++query) {
      const std::int64_t key = position + s.first_query + query - (s.whole_queries - 1);
      if (key < 0 || key >= s.keys) continue;
      sum += widened(dscores[((batch * s.heads + head) * s.queries + query) * s.leading + key]);
    }
  sums[(s.first_head + head) * positions + position] += sum / s.scale;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    round_rows_kernel(const float* from, std::int64_t count, std::int64_t columns, std::int64_t row,
                      T* to) {
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * kThreads)
    to[i / columns * row + i % columns] = narrowed<T>(from[i]);
}

std::int64_t rows_of(const ScoreRows& s) { return s.batch * s.heads * s.queries; }

bool launchable(std::int64_t rows) { return rows <= std::int64_t{0x7fffffff} * kRowsOfBlock; }

unsigned blocks_for(std::int64_t rows) {
  return static_cast<unsigned>((rows + kRowsOfBlock - 1) / kRowsOfBlock);
}

}  // namespace

cudaError_t launch_softmax(Launch at, DType type, const ScoreRows& rows, const float* scores,
                           void* probabilities) {
  const std::int64_t count = rows_of(rows);
  if (count == 0) return cudaSuccess;
  if (!launchable(count)) return cudaErrorInvalidConfiguration;
  return with_training_type(type, [&](auto element) {
    using T = decltype(element);
    return launch_kernel(softmax_kernel<T>, blocks_for(count), kThreads, 0, at.stream, rows, count,
                         scores, static_cast<T*>(probabilities));
  });
}

cudaError_t launch_softmax_gradient(Launch at, DType type, const ScoreRows& rows,
                                    const float* scores, const float* gradient, void* probabilities,
                                    void* dscores) {
  const std::int64_t count = rows_of(rows);
  if (count == 0) return cudaSuccess;
  if (!launchable(count)) return cudaErrorInvalidConfiguration;
  return with_training_type(type, [&](auto element) {
    using T = decltype(element);
    return launch_kernel(softmax_gradient_kernel<T>, blocks_for(count), kThreads, 0, at.stream,
                         rows, count, scores, gradient, static_cast<T*>(probabilities),
                         static_cast<T*>(dscores));
  });
}

cudaError_t launch_sum_relative_bias(Launch at, DType type, const ScoreRows& rows,
                                     const void* dscores, float* sums) {
  const std::int64_t count = rows.heads * (rows.whole_queries + rows.whole_keys - 1);
  if (count <= 0) return cudaSuccess;
  return with_training_type(type, [&](auto element) {
    using T = decltype(element);
    return launch_kernel(sum_relative_bias_kernel<T>,
                         static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
                         at.stream, rows, static_cast<const T*>(dscores), sums);
  });
}

cudaError_t launch_round_rows(Launch at, DType type, const float* from, std::int64_t rows,
                              std::int64_t columns, std::int64_t row, void* to) {
  const std::int64_t count = rows * columns;
  if (count == 0) return cudaSuccess;
  return with_training_type(type, [&](auto element) {
    using T = decltype(element);
    return launch_kernel(round_rows_kernel<T>, grid_for(count, kThreads, at.multiprocessors),
                         kThreads, 0, at.stream, from, count, columns, row, static_cast<T*>(to));
  });
}

}  // namespace shoal::kernels
