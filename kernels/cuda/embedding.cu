#include "shoal/kernels/cuda/embedding.cuh"
#include "shoal/kernels/cuda/launch_kernel.cuh"
#include "shoal/kernels/cuda/row_packs.cuh"
#include "shoal/kernels/cuda/vector.cuh"

namespace shoal::kernels {
namespace {

using Sort = EmbeddingSort;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr std::uint32_t kNoKey = 0xffffffffu;  // ids are below 2^31
constexpr int kTogether = 4;                   // loads in flight per thread

__device__ __forceinline__ std::int64_t thread_number() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ __forceinline__ std::int64_t thread_count() {
  return static_cast<std::int64_t>(gridDim.x) * kThreads;
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(RowPacks packs, bool aligned, const std::int32_t* ids, std::int64_t vocabulary,
                  const T* table, T* out, bool accumulate, FaultRecord* fault) {
  for (std::int64_t pack = thread_number(); pack < packs.total; pack += thread_count()) {
    const RowPacks::Place place = packs.at(pack);
    std::int64_t id = ids[place.row];
    if (id < 0 || id >= vocabulary) {
      if (place.column == 0) report(fault, Fault::id_outside_table, place.row, id, vocabulary);
      id = 0;
    }
    T* to = out + place.row * packs.columns + place.column;
    float value[N], before[N];
    load(table + id * packs.columns + place.column, place.count, aligned, value);
    if (accumulate) {
      load(static_cast<const T*>(to), place.count, aligned, before);
#pragma unroll
      for (int k = 0; k < N; ++k) value[k] += before[k];
    }
    store(value, place.count, aligned, to);
  }
}

__global__ void __launch_bounds__(kThreads)
    key_kernel(const std::int32_t* ids, std::int64_t count, std::int64_t vocabulary,
               std::uint32_t* keys, std::uint32_t* positions, FaultRecord* fault) {
  for (std::int64_t i = thread_number(); i < count; i += thread_count()) {
    const std::int32_t id = ids[i];
    const bool inside = id >= 0 && id < vocabulary;
    if (!inside) report(fault, Fault::id_outside_table, i, id, vocabulary);
    keys[i] = inside ? static_cast<std::uint32_t>(id) : 0;
    positions[i] = static_cast<std::uint32_t>(i);
  }
}

// One pass of a stable radix sort: counts[digit][tile], their exclusive sums, and the scatter.
__global__ void __launch_bounds__(kThreads)
    count_kernel(const std::uint32_t* keys, std::int64_t count, int shift, std::uint32_t* counts) {
  static_assert(Sort::kDigits == kThreads, "a digit a thread");
  __shared__ std::uint32_t of_digit[Sort::kDigits];
  of_digit[threadIdx.x] = 0;
  __syncthreads();
  const std::int64_t begin = blockIdx.x * Sort::kTile;
  for (std::int64_t k = threadIdx.x; k < Sort::kTile && begin + k < count; k += kThreads)
    atomicAdd(&of_digit[keys[begin + k] >> shift & (Sort::kDigits - 1)], 1u);
  __syncthreads();
  counts[static_cast<std::int64_t>(threadIdx.x) * gridDim.x + blockIdx.x] = of_digit[threadIdx.x];
}

constexpr int kScanThreads = 1024;
constexpr int kScanItems = 4;

// Exclusive sums in place, in one block.
__global__ void __launch_bounds__(kScanThreads)
    scan_kernel(std::uint32_t* counts, std::int64_t count) {
  __shared__ std::uint32_t of_warp[kScanThreads / 32];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  std::uint32_t carry = 0;
  for (std::int64_t base = 0; base < count; base += kScanThreads * kScanItems) {
    const std::int64_t first = base + static_cast<std::int64_t>(threadIdx.x) * kScanItems;
    std::uint32_t item[kScanItems], mine = 0;
#pragma unroll
    for (int k = 0; k < kScanItems; ++k) {
      item[k] = first + k < count ? counts[first + k] : 0;
      mine += item[k];
    }
    // Inclusive sums over the warp, then over the earlier warps.
    std::uint32_t sum = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(kAll, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    std::uint32_t before = carry, total = 0;
    for (int w = 0; w < kScanThreads / 32; ++w) {
      if (w < warp) before += of_warp[w];
      total += of_warp[w];
    }
    carry += total;
    __syncthreads();
    std::uint32_t running = before + sum - mine;
#pragma unroll
    for (int k = 0; k < kScanItems; ++k) {
      if (first + k < count) counts[first + k] = running;
      running += item[k];
    }
  }
}

// Each warp handles consecutive keys of the tile, 32 at a time, so that equal keys keep their
// order.
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const std::uint32_t* keys, const std::uint32_t* positions, std::int64_t count,
                   int shift, const std::uint32_t* starts, std::uint32_t* sorted_keys,
                   std::uint32_t* sorted_positions) {
  constexpr int kRounds = static_cast<int>(Sort::kTile) / kThreads;
  __shared__ std::uint32_t next[kWarps][Sort::kDigits];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  for (int w = 0; w < kWarps; ++w) next[w][threadIdx.x] = 0;
  __syncthreads();
  const std::int64_t begin = blockIdx.x * Sort::kTile + warp * (kRounds * 32) + lane;
  std::uint32_t key[kRounds], rank[kRounds];
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    const bool valid = begin + r * 32 < count;
    key[r] = valid ? keys[begin + r * 32] : 0;
    // Lanes past the end use a separate digit.
    const unsigned digit = valid ? key[r] >> shift & (Sort::kDigits - 1) : Sort::kDigits;
    const unsigned same = __match_any_sync(kAll, digit);
    const int leader = __ffs(static_cast<int>(same)) - 1;
    std::uint32_t before = 0;
    if (valid && lane == leader) {
      before = next[warp][digit];
      next[warp][digit] = before + static_cast<unsigned>(__popc(same));
    }
    before = __shfl_sync(kAll, before, leader);
    rank[r] = before + static_cast<unsigned>(__popc(same & ((1u << lane) - 1)));
    __syncwarp();
  }
  __syncthreads();
  // Turns each warp's count per digit into the position of its first key with that digit.
  std::uint32_t start = starts[static_cast<std::int64_t>(threadIdx.x) * gridDim.x + blockIdx.x];
  for (int w = 0; w < kWarps; ++w) {
    const std::uint32_t mine = next[w][threadIdx.x];
    next[w][threadIdx.x] = start;
    start += mine;
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (begin + r * 32 >= count) continue;
    const std::uint32_t to = next[warp][key[r] >> shift & (Sort::kDigits - 1)] + rank[r];
    sorted_keys[to] = key[r];
    sorted_positions[to] = positions[begin + r * 32];
  }
}

template <int N>
__device__ __forceinline__ void add_to(const float (&sum)[N], std::int64_t count, bool aligned,
                                       float* to) {
  float before[N];
  load(static_cast<const float*>(to), count, aligned, before);
#pragma unroll
  for (int k = 0; k < N; ++k) before[k] += sum[k];
  store(before, count, aligned, to);
}

// Data of the two kernels that work on sorted ids. A warp's task is one chunk of 32 sorted ids and
// one strip of 32 * N columns. partials [chunk][2][columns] has two sums per chunk: of the run of
// equal ids that began in an earlier chunk, and of the run that continues into the next chunk.
struct Runs {
  const std::uint32_t *keys, *positions;
  std::int64_t count, columns, strips;
  float *partials, *dtable;
  bool aligned;

  __device__ __forceinline__ float* partial(std::int64_t chunk, int which) const {
    return partials + (2 * chunk + which) * columns;
  }
};

// Adds the rows of a chunk in order. The sum of a run inside the chunk is added to its table row,
// which no other warp writes. Parts of longer runs are left for join_kernel.
template <int N, class T>
__device__ void add_chunk(const Runs& runs, const T* dout, std::int64_t chunk,
                          std::int64_t column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t begin = chunk * Sort::kChunk, left = runs.columns - column;
  const std::int64_t rest = runs.count - begin;
  const int rows = static_cast<int>(rest < Sort::kChunk ? rest : Sort::kChunk);
  const std::uint32_t my_key = lane < rows ? runs.keys[begin + lane] : kNoKey;
  const std::uint32_t my_position = lane < rows ? runs.positions[begin + lane] : 0;
  std::uint32_t current = __shfl_sync(kAll, my_key, 0);
  bool continued = begin > 0 && runs.keys[begin - 1] == current;
  float sum[N] = {};
  for (int j = 0; j < rows; j += kTogether) {
    float x[kTogether][N];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (j + u >= rows) break;
      const std::int64_t row = __shfl_sync(kAll, my_position, j + u);
      load(dout + row * runs.columns + column, left, runs.aligned, x[u]);
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (j + u >= rows) break;
      const std::uint32_t key = __shfl_sync(kAll, my_key, j + u);
      if (key != current) {
        if (continued)
          store(sum, left, runs.aligned, runs.partial(chunk, 0) + column);
        else
          add_to(sum, left, runs.aligned, runs.dtable + current * runs.columns + column);
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] = 0;
        current = key;
        continued = false;
      }
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += x[u][k];
    }
  }
  const bool goes_on = begin + rows < runs.count && runs.keys[begin + rows] == current;
  if (continued)
    store(sum, left, runs.aligned, runs.partial(chunk, 0) + column);
  else if (goes_on)
    store(sum, left, runs.aligned, runs.partial(chunk, 1) + column);
  else
    add_to(sum, left, runs.aligned, runs.dtable + current * runs.columns + column);
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    chunk_kernel(Runs runs, const T* dout, std::int64_t tasks) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t task = thread_number() / 32; task < tasks; task += thread_count() / 32)
    add_chunk<N>(runs, dout, task / runs.strips, (task % runs.strips * 32 + lane) * N);
}

// Adds the parts of the run that begins in a chunk and continues, in order, then adds the sum to
// the table.
template <int N>
__device__ void join_run(const Runs& runs, std::int64_t chunk, std::int64_t column) {
  const std::int64_t begin = chunk * Sort::kChunk, next = begin + Sort::kChunk;
  if (next >= runs.count) return;
  const std::uint32_t key = runs.keys[next - 1];
  if (runs.keys[next] != key) return;
  if (begin > 0 && runs.keys[begin] == key && runs.keys[begin - 1] == key) return;
  // The run ends at the first sorted key above `key`.
  std::int64_t low = next + 1, high = runs.count;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (runs.keys[middle] > key)
      high = middle;
    else
      low = middle + 1;
  }
  const std::int64_t last = (low - 1) / Sort::kChunk, left = runs.columns - column;
  float sum[N];
  load(static_cast<const float*>(runs.partial(chunk, 1) + column), left, runs.aligned, sum);
  for (std::int64_t c = chunk + 1; c <= last; c += kTogether) {
    float part[kTogether][N];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (c + u > last) break;
      load(static_cast<const float*>(runs.partial(c + u, 0) + column), left, runs.aligned, part[u]);
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (c + u > last) break;
#pragma unroll
      for (int k = 0; k < N; ++k) sum[k] += part[u][k];
    }
  }
  add_to(sum, left, runs.aligned, runs.dtable + key * runs.columns + column);
}

template <int N>
__global__ void __launch_bounds__(kThreads) join_kernel(Runs runs, std::int64_t tasks) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (std::int64_t task = thread_number() / 32; task < tasks; task += thread_count() / 32)
    join_run<N>(runs, task / runs.strips, (task % runs.strips * 32 + lane) * N);
}

template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    position_kernel(std::int64_t batch, std::int64_t plane, bool aligned, const T* dout,
                    float* dtable) {
  for (std::int64_t i = thread_number() * N; i < plane; i += thread_count() * N) {
    const std::int64_t left = plane - i;
    float sum[N];
    load(static_cast<const float*>(dtable + i), left, aligned, sum);
    for (std::int64_t b = 0; b < batch; b += kTogether) {
      float x[kTogether][N];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (b + u >= batch) break;
        load(dout + (b + u) * plane + i, left, aligned, x[u]);
      }
#pragma unroll
      for (int u = 0; u < kTogether; ++u) {
        if (b + u >= batch) break;
#pragma unroll
        for (int k = 0; k < N; ++k) sum[k] += x[u][k];
      }
    }
    store(sum, left, aligned, dtable + i);
  }
}

// Sorts ids into keys with their positions.
cudaError_t sort_ids(Launch at, EmbeddingShape shape, const Sort& sort, const std::int32_t* ids,
                     std::byte* scratch, FaultRecord* fault) {
  const auto words = [&](std::size_t offset) {
    return reinterpret_cast<std::uint32_t*>(scratch + offset);
  };
  const auto tiles = static_cast<unsigned>(sort.tiles);
  cudaError_t status = launch_kernel(
      key_kernel, grid_for(shape.count, kThreads, at.multiprocessors), kThreads, 0, at.stream, ids,
      shape.count, shape.vocabulary, words(sort.keys[0]), words(sort.positions[0]), fault);
  for (int pass = 0; status == cudaSuccess && pass < sort.passes; ++pass) {
    const int from = pass % 2, to = 1 - from, shift = pass * Sort::kDigitBits;
    status = launch_kernel(count_kernel, tiles, kThreads, 0, at.stream, words(sort.keys[from]),
                           shape.count, shift, words(sort.counts));
    if (status != cudaSuccess) break;
    status = launch_kernel(scan_kernel, 1, kScanThreads, 0, at.stream, words(sort.counts),
                           Sort::kDigits * sort.tiles);
    if (status != cudaSuccess) break;
    status = launch_kernel(scatter_kernel, tiles, kThreads, 0, at.stream, words(sort.keys[from]),
                           words(sort.positions[from]), shape.count, shift, words(sort.counts),
                           words(sort.keys[to]), words(sort.positions[to]));
  }
  return status;
}

// Each thread rotates N adjacent points: elements in the turning channels' first half and their
// partners in the second half.
template <int N, class T>
__global__ void __launch_bounds__(kThreads)
    rotary_kernel(RotaryLaunch args, RowPacks packs, Divisor by_half) {
  const std::int64_t half = args.turning / 2;
  for (std::int64_t pack = thread_number(); pack < packs.total; pack += thread_count()) {
    const RowPacks::Place place = packs.at(pack);  // in rows made of the points' first elements
    const std::int64_t head = by_half.quotient(static_cast<std::uint32_t>(place.column)),
                       point = place.column - head * half,
                       at = place.row * args.width + head * args.dim + point;
    std::int64_t position = args.positions ? args.positions[place.row] : place.row % args.length;
    if (args.positions && (position < 0 || position >= args.limit)) {
      if (place.column == 0)
        report(args.fault, Fault::id_outside_table, place.row, position, args.limit);
      position = 0;
    }
    const float* table = args.table + position * args.turning + point;
    const T* x = static_cast<const T*>(args.x) + at;
    float a[N], b[N], c[N], s[N];
    load(x, a);
    load(x + half, b);
    load(table, c);
    load(table + half, s);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float x0 = a[k], x1 = b[k], sine = args.sign * s[k];
      a[k] = fmaf(-x1, sine, x0 * c[k]);
      b[k] = fmaf(x0, sine, x1 * c[k]);
    }
    T* out = static_cast<T*>(args.out) + at;
    store(a, out);
    store(b, out + half);
    if (args.out == args.x) continue;
    // The points' threads copy what does not turn: their own elements of every further `half`.
    for (std::int64_t i = args.turning; i + point < args.dim; i += half)
#pragma unroll
      for (int k = 0; k < N; ++k)
        if (i + point + k < args.dim) out[i + k] = x[i + k];
  }
}

template <int N, class T>
cudaError_t rotary(Launch at, const RotaryLaunch& args) {
  const std::int64_t heads = args.width / args.dim;
  const RowPacks packs(args.rows, heads * args.turning / 2, N);
  if (packs.total == 0) return cudaSuccess;
  return launch_kernel(rotary_kernel<N, T>, grid_for(packs.total, kThreads, at.multiprocessors),
                       kThreads, 0, at.stream, args, packs,
                       Divisor(static_cast<std::uint32_t>(args.turning / 2)));
}

}  // namespace

cudaError_t launch_embedding(Launch at, DType dtype, EmbeddingShape shape, const std::int32_t* ids,
                             const void* table, void* out, bool accumulate, FaultRecord* fault) {
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = 16 / static_cast<int>(sizeof(T));
    const RowPacks packs(shape.count, shape.columns, N);
    if (packs.total == 0) return cudaSuccess;
    return launch_kernel(gather_kernel<N, T>, grid_for(packs.total, kThreads, at.multiprocessors),
                         kThreads, 0, at.stream, packs, aligned16(table, out) && packs.whole(), ids,
                         shape.vocabulary, static_cast<const T*>(table), static_cast<T*>(out),
                         accumulate, fault);
  });
}

cudaError_t launch_embedding_backward(Launch at, DType dtype, EmbeddingShape shape,
                                      const EmbeddingSort& sort, const std::int32_t* ids,
                                      const void* dout, float* dtable, std::byte* scratch,
                                      FaultRecord* fault) {
  const cudaError_t sorted = sort_ids(at, shape, sort, ids, scratch, fault);
  if (sorted != cudaSuccess) return sorted;
  const int half = sort.passes % 2;
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = 16 / static_cast<int>(sizeof(T));
    const std::int64_t strips = (shape.columns + 32 * N - 1) / (32 * N);
    const Runs runs{reinterpret_cast<const std::uint32_t*>(scratch + sort.keys[half]),
                    reinterpret_cast<const std::uint32_t*>(scratch + sort.positions[half]),
                    shape.count,
                    shape.columns,
                    strips,
                    reinterpret_cast<float*>(scratch + sort.partials),
                    dtable,
                    aligned16(dout, dtable) && shape.columns % N == 0};
    const std::int64_t tasks = sort.chunks * strips;
    const unsigned grid = grid_for(tasks * 32, kThreads, at.multiprocessors);
    const cudaError_t status = launch_kernel(chunk_kernel<N, T>, grid, kThreads, 0, at.stream, runs,
                                             static_cast<const T*>(dout), tasks);
    if (status != cudaSuccess || sort.chunks == 1) return status;
    return launch_kernel(join_kernel<N>, grid, kThreads, 0, at.stream, runs, tasks);
  });
}

cudaError_t launch_position_backward(Launch at, DType dtype, std::int64_t batch, std::int64_t plane,
                                     const void* dout, float* dtable) {
  if (batch * plane == 0) return cudaSuccess;
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = 16 / static_cast<int>(sizeof(T));
    return launch_kernel(position_kernel<N, T>,
                         grid_for((plane + N - 1) / N, kThreads, at.multiprocessors), kThreads, 0,
                         at.stream, batch, plane, aligned16(dout, dtable) && plane % N == 0,
                         static_cast<const T*>(dout), dtable);
  });
}

cudaError_t launch_rotary(Launch at, DType dtype, const RotaryLaunch& args) {
  return with_training_type(dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int N = 16 / static_cast<int>(sizeof(T));
    // The table's rows then consist of whole vectors too.
    if (aligned16(args.x, args.out, args.table) && args.turning % (2 * N) == 0 && args.dim % N == 0)
      return rotary<N, T>(at, args);
    return rotary<1, T>(at, args);
  });
}

}  // namespace shoal::kernels
