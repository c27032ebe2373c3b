#include "shoal/kernels/cuda/attention_padding.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"

namespace shoal::kernels {
namespace {

constexpr int kThreads = 256, kRowsOfBlock = kThreads / 32;

__global__ void __launch_bounds__(kThreads)
    count_rows_kernel(const std::int32_t* lengths, int batch, int queries, int keys,
                      std::int32_t* query_lengths, std::int32_t* key_lengths) {
  const int row = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (row >= batch) return;
  query_lengths[row] = queries;
  key_lengths[row] = max(0, min(lengths[row], keys));
}

// One warp per position of a batch row.
__global__ void __launch_bounds__(kThreads) clear_padding_kernel(PaddedTensors p, int positions) {
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * kRowsOfBlock + threadIdx.x / 32;
  const std::int64_t batch = index / positions;
  if (batch >= p.batch) return;
  const int at = static_cast<int>(index % positions), lane = static_cast<int>(threadIdx.x % 32),
            length = p.lengths[batch];
  for (int i = 0; i < p.count; ++i) {
    const PaddedTensor& tensor = p.tensors[i];
    const bool padded =
        tensor.of_keys ? at >= length && at < p.keys : length == 0 && at < p.queries;
    if (!padded) continue;
    auto* row = static_cast<std::uint16_t*>(tensor.data) + batch * tensor.batch + at * tensor.row;
    for (int c = 8 * lane; c < p.channels; c += 256)
      *reinterpret_cast<uint4*>(row + c) = uint4{0, 0, 0, 0};
  }
  if (!p.log_sum_exp || length != 0 || at >= p.queries) return;
  for (int head = lane; head < p.heads; head += 32)
    p.log_sum_exp[(batch * p.heads + head) * p.queries + at] = -__builtin_inff();
}

__global__ void __launch_bounds__(kThreads) packed_offsets_kernel(PackedOffsets p) {
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (i > p.count) return;
  // The last offset is the end of the last row.
  const int sequence = p.first + i, row = sequence / p.of_row;
  const int begin = row < p.rows ? max(0, min(p.sequences[sequence], p.length)) : 0;
#pragma unroll
  for (int t = 0; t < kPackedTensors; ++t)
    if (p.offsets[t])
      p.offsets[t][i] = static_cast<std::int32_t>((row * p.length + begin) * p.row[t]);
  if (i == p.count) return;
  const int end = sequence % p.of_row + 1 < p.of_row ? p.sequences[sequence + 1] : p.length;
  p.query_lengths[i] = p.key_lengths[i] = max(0, min(end, p.length) - begin);
}

// Writes `to` in its own order: [batch, heads, length] if kByHead, else [batch, length, heads].
template <bool kByHead>
__global__ void __launch_bounds__(kThreads)
    exchange_sums_kernel(const float* from, std::int64_t count, int heads, int length, float* to) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const int inner = kByHead ? length : heads, outer = kByHead ? heads : length;
  const std::int64_t at = index / inner, batch = at / outer;
  to[index] = from[(batch * inner + index % inner) * outer + at % outer];
}

template <bool kByHead>
cudaError_t exchange_sums(Launch at, const float* from, int batch, int heads, int length,
                          float* to) {
  const std::int64_t count = static_cast<std::int64_t>(batch) * heads * length,
                     blocks = (count + kThreads - 1) / kThreads;
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  return launch_kernel(exchange_sums_kernel<kByHead>, static_cast<unsigned>(blocks), kThreads, 0,
                       at.stream, from, count, heads, length, to);
}

}  // namespace

cudaError_t launch_packed_offsets(Launch at, const PackedOffsets& packed) {
  return launch_kernel(packed_offsets_kernel, static_cast<unsigned>(packed.count / kThreads + 1),
                       kThreads, 0, at.stream, packed);
}

cudaError_t launch_sums_by_head(Launch at, const float* from, int batch, int heads, int length,
                                float* to) {
  return exchange_sums<true>(at, from, batch, heads, length, to);
}
cudaError_t launch_sums_by_token(Launch at, const float* from, int batch, int heads, int length,
                                 float* to) {
  return exchange_sums<false>(at, from, batch, heads, length, to);
}

cudaError_t launch_count_rows(Launch at, const std::int32_t* lengths, int batch, int queries,
                              int keys, std::int32_t* query_lengths, std::int32_t* key_lengths) {
  if (batch == 0) return cudaSuccess;
  return launch_kernel(count_rows_kernel, static_cast<unsigned>((batch + kThreads - 1) / kThreads),
                       kThreads, 0, at.stream, lengths, batch, queries, keys, query_lengths,
                       key_lengths);
}

cudaError_t launch_clear_padding(Launch at, const PaddedTensors& padded) {
  const int positions = padded.queries > padded.keys ? padded.queries : padded.keys;
  const std::int64_t blocks =
      (static_cast<std::int64_t>(padded.batch) * positions + kRowsOfBlock - 1) / kRowsOfBlock;
  if (blocks == 0) return cudaSuccess;
  if (blocks > 0x7fffffff) return cudaErrorInvalidConfiguration;
  return launch_kernel(clear_padding_kernel, static_cast<unsigned>(blocks), kThreads, 0, at.stream,
                       padded, positions);
}

}  // namespace shoal::kernels
