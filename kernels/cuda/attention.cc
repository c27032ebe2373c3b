// Attention on a GPU, in order of preference: cuDNN's fused kernels if they compute exactly what is
// asked; our own fused kernels; products of whole score matrices. Products are for GPUs before
// sm_80, large heads, and tiles that exceed the chip's shared memory (99 KiB on sm_86 and sm_89).
#include "shoal/kernels/attention.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "shoal/kernels/attention_checks.h"
#include "shoal/kernels/cuda/attention_cudnn.h"
#include "shoal/kernels/cuda/attention_flash.cuh"
#include "shoal/kernels/cuda/attention_groups.cuh"
#include "shoal/kernels/cuda/attention_padding.cuh"
#include "shoal/kernels/cuda/attention_products.h"
#include "shoal/kernels/cuda/families.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/log.h"

namespace shoal::kernels {
namespace {

// The fused kernels need at least this compute capability: cp.async, mma of 16 x 8 x 16, bf16.
constexpr int kFusedCapability = 80;

enum class Choice { automatic, cudnn, own, products };

Choice choice_of_user() {
  const std::string text = env::get_string(env::kCudaAttention);
  if (text == "auto") return Choice::automatic;
  if (text == "cudnn") return Choice::cudnn;
  if (text == "own") return Choice::own;
  if (text == "products") return Choice::products;
  throw_error(ErrorCode::invalid_argument, "{}='{}' is not auto, cudnn, own or products",
              env::kCudaAttention.name, text);
}

// The tensors of one call. In forward, the gradients are null.
struct Tensors {
  HeadsView q, k, v, out, dout, dq, dk, dv;
  float* log_sum_exp = nullptr;
  const FlashRange* sequences = nullptr;  // of packed sequences, once computed
  bool backward = false;
};

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

// True if 16-byte loads and stores reach every element of every tensor.
bool vectors(const AttentionShape& s, const Tensors& t) {
  const std::int64_t elements = 16 / static_cast<std::int64_t>(size_of(s.dtype));
  if (s.head_dim % elements != 0) return false;
  for (const HeadsView& view : {t.q, t.k, t.v, t.out, t.dout, t.dq, t.dk, t.dv})
    if (!aligned(view.data) || view.row_stride % elements != 0 || view.batch_stride % elements != 0)
      return false;
  return true;
}

// cuDNN sees all batch rows of packed sequences as one row of tokens, with 32-bit offsets.
const char* beyond_packed(const AttentionShape& s, const Tensors& t) {
  if (!s.sequences.defined()) return nullptr;
  for (const HeadsView& view : {t.q, t.k, t.v, t.out, t.dout, t.dq, t.dk, t.dv}) {
    if (s.batch > 1 && view.data && view.batch_stride != s.query_length * view.row_stride)
      return "batch rows of packed sequences do not follow each other";
    if (s.batch * s.query_length * view.row_stride > 0x7fffffff)
      return "packed sequences have more than 2^31 elements";
  }
  return nullptr;
}

// cuDNN gets at most this many pieces of a packed gradient, empty sequences included, since each
// takes several launches and scratch for full-length rows. Our own kernels skip other sequences.
constexpr std::int64_t kMostPackedPieces = 8;

// Number of batch rows in cuDNN's view of the call.
std::int64_t rows_of(const AttentionShape& s) {
  return s.sequences.defined() ? s.sequences.shape.count() : s.batch;
}

// Returns the reason not to use cuDNN; null: use it.
const char* beyond_cudnn(const AttentionShape& s, const Tensors& t, int capability) {
  if (capability < kFusedCapability) return "its fused kernels need compute capability 8.0";
  if (s.dtype == DType::f32) return "f32 is computed in f32";
  if (shown_keys_of(s)) return "a key mask of bytes need not be a prefix";
  if (key_lengths_of(s) && s.causal && s.query_length != s.key_length)
    return "keys have lengths and causality is shifted";
  if (s.window > 0) return "keys have a sliding window";
  if (s.soft_cap > 0) return "scores have a soft cap";
  if (s.relative_bias.defined()) return "scores have a bias by relative position";
  if (s.dropout > 0) return "dropout follows coordinates that do not depend on the layout";
  if (const char* why = beyond_packed(s, t)) return why;
  if (s.key_length == 0) return "there are no keys";
  if (s.causal && s.query_length > s.key_length) return "some queries see no key";
  // cuDNN's decoding kernels accessed illegal addresses (9.19, one query against a cache).
  if (s.query_length == 1 || (s.query_length != s.key_length && s.query_length < 64))
    return "there are few queries";
  if (s.head_dim % 8 != 0 || s.head_dim > kFlashMaxHeadDim) return "of the size of a head";
  if (!vectors(s, t) || !aligned(t.log_sum_exp)) return "tensors are not aligned to 16 bytes";
  return nullptr;
}

// With one batch row, the batch stride may be arbitrary; plans get a meaningful one.
CudnnStrides strides(std::int64_t batch, HeadsView view, std::int64_t length) {
  return {batch == 1 ? length * view.row_stride : view.batch_stride, view.row_stride};
}

// The key of the plan for `batch` rows of the call.
CudnnAttentionKey key_of(const AttentionShape& s, const Tensors& t, std::int64_t batch) {
  CudnnAttentionKey key;
  key.batch = batch;
  key.heads = s.heads;
  key.queries = s.query_length;
  key.keys = s.key_length;
  key.head_dim = s.head_dim;
  key.dtype = s.dtype;
  key.causal = s.causal;
  key.backward = t.backward;
  key.packed = s.sequences.defined();
  key.lengths = key.packed || key_lengths_of(s);
  const std::int64_t strided = key.packed ? 1 : batch;
  const auto of_queries = [&](HeadsView view) { return strides(strided, view, s.query_length); };
  const auto of_keys = [&](HeadsView view) { return strides(strided, view, s.key_length); };
  key.q = of_queries(t.q), key.k = of_keys(t.k), key.v = of_keys(t.v);
  key.out = of_queries(t.out);
  if (t.backward) {
    key.dout = of_queries(t.dout), key.dq = of_queries(t.dq);
    key.dk = of_keys(t.dk), key.dv = of_keys(t.dv);
  }
  return key;
}

FlashHeads flash(HeadsView view) {
  return {const_cast<void*>(view.data), view.batch_stride, view.row_stride};
}

FlashType flash_type(DType dtype) {
  return dtype == DType::f32    ? FlashType::f32
         : dtype == DType::bf16 ? FlashType::bf16
                                : FlashType::f16;
}

FlashArgs flash_args(const AttentionShape& s, const Tensors& t) {
  FlashArgs a;
  a.q = flash(t.q), a.k = flash(t.k), a.v = flash(t.v), a.out = flash(t.out);
  a.dout = flash(t.dout), a.dq = flash(t.dq), a.dk = flash(t.dk), a.dv = flash(t.dv);
  a.log_sum_exp = t.log_sum_exp;
  a.batch = static_cast<int>(s.batch);
  a.heads = static_cast<int>(s.heads);
  a.queries = static_cast<int>(s.query_length), a.keys = static_cast<int>(s.key_length);
  a.head_dim = static_cast<int>(s.head_dim);
  a.scale = s.scale, a.soft_cap = s.soft_cap;
  a.causal = s.causal;
  a.window = static_cast<int>(std::min<std::int64_t>(s.window, 0x7fffffff));
  a.vectors = vectors(s, t);
  a.key_mask = shown_keys_of(s);
  a.key_lengths = key_lengths_of(s);
  a.sequences = t.sequences;
  return a;
}

void check_for_cuda(const AttentionShape& s, const ConstView& log_sum_exp) {
  check_attention(s);
  SHOAL_CHECK(
      !log_sum_exp.defined() || (log_sum_exp.dtype == DType::f32 &&
                                 log_sum_exp.shape.count() == s.batch * s.heads * s.query_length),
      "attention: log_sum_exp is {} {}, not f32 [{}, {}, {}]", to_string(log_sum_exp.dtype),
      to_string(log_sum_exp.shape), s.batch, s.heads, s.query_length);
  constexpr std::int64_t most = 0x7fffffff - 128;  // kernels use int sizes, rounded up to tiles
  SHOAL_CHECK(s.batch <= most && s.heads <= most && s.query_length <= most && s.key_length <= most,
              "attention: a size is above {}: batch {}, heads {}, queries {}, keys {}", most,
              s.batch, s.heads, s.query_length, s.key_length);
}

class CudaAttention final : public AttentionKernels {
 public:
  CudaAttention(CudaResources& resources, CudaGemm& gemm)
      : resources_(resources),
        choice_(choice_of_user()),
        workspace_(env::get_integer(env::kCudaAttentionWorkspace) * (std::int64_t{1} << 20)),
        products_(resources, gemm, workspace_) {
    SHOAL_CHECK(workspace_ >= 0, "{} is negative", env::kCudaAttentionWorkspace.name);
    check_cuda(cudaDeviceGetAttribute(&shared_limit_, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                      resources.device().index),
               "reading the size of shared memory");
  }

  std::int64_t kept_bytes(const AttentionShape& s) const override {
    // Only the fused kernels keep bits for backward; attention by products draws them again.
    return goes_by_products(s, true) ? 0 : drawn_bytes(s);
  }

  void attention(const AttentionShape& shape, HeadsView q, HeadsView k, HeadsView v,
                 MutableHeadsView out, View log_sum_exp, Stream stream) override {
    check_for_cuda(shape, log_sum_exp);
    check_kept(shape);
    if (heads_per_key_head(shape) > 1) {
      const Expanded keys(*this, shape, stream, 2);
      AttentionShape whole = shape;
      whole.key_heads = 0;
      return attention(whole, q, keys.copy(0, k), keys.copy(1, v), out, log_sum_exp, stream);
    }
    const cudaStream_t native = resources_.begin(stream);
    if (shape.batch * shape.heads * shape.query_length * shape.head_dim == 0) return;
    Tensors t;
    t.q = q, t.k = k, t.v = v, t.out = view_of(out);
    t.log_sum_exp = static_cast<float*>(log_sum_exp.data);
    if (by_cudnn(shape, t, stream, native)) return;
    own(shape, t, stream, native);
  }

  void attention_backward(const AttentionShape& shape, HeadsView q, HeadsView k, HeadsView v,
                          HeadsView out, ConstView log_sum_exp, HeadsView dout, MutableHeadsView dq,
                          MutableHeadsView dk, MutableHeadsView dv, Stream stream) override {
    check_for_cuda(shape, log_sum_exp);
    check_kept(shape);
    if (heads_per_key_head(shape) > 1) {
      const Expanded keys(*this, shape, stream, 4);
      AttentionShape whole = shape;
      whole.key_heads = 0;
      attention_backward(whole, q, keys.copy(0, k), keys.copy(1, v), out, log_sum_exp, dout, dq,
                         keys.place(2), keys.place(3), stream);
      keys.fold(2, dk);
      return keys.fold(3, dv);
    }
    const cudaStream_t native = resources_.begin(stream);
    clear_relative_bias_gradient(shape, native);
    if (shape.batch * shape.heads * shape.head_dim == 0) return;
    SHOAL_CHECK(log_sum_exp.defined() || shape.query_length == 0,
                "attention_backward: no log_sum_exp");
    Tensors t;
    t.q = q, t.k = k, t.v = v, t.out = out, t.dout = dout;
    t.dq = view_of(dq), t.dk = view_of(dk), t.dv = view_of(dv);
    t.log_sum_exp = static_cast<float*>(const_cast<void*>(log_sum_exp.data));
    t.backward = true;
    if (shape.query_length > 0 && by_cudnn(shape, t, stream, native)) return;
    own(shape, t, stream, native);
  }

 private:
  // Keys, values and their gradients of one call, expanded to one key head per query head
  // (attention_groups.cuh).
  class Expanded {
   public:
    Expanded(CudaAttention& owner, const AttentionShape& s, Stream stream, int tensors)
        : at_{owner.resources_.begin(stream), owner.resources_.multiprocessors()},
          shape_{s.batch, s.key_length, s.key_heads, heads_per_key_head(s), s.head_dim, 0, 0},
          dtype_(s.dtype),
          row_(s.heads * s.head_dim),
          bytes_(
              (static_cast<std::size_t>(s.batch * s.key_length * row_) * size_of(s.dtype) + 255) /
              256 * 256),
          memory_(owner.resources_.scratch(
              std::max<std::size_t>(bytes_, 256) * static_cast<std::size_t>(tensors), stream)) {}
    MutableHeadsView place(int index) const {
      return {static_cast<char*>(memory_.data()) + static_cast<std::size_t>(index) * bytes_,
              shape_.length * row_, row_};
    }
    HeadsView copy(int index, HeadsView from) const {
      const MutableHeadsView to = place(index);
      check_cuda(launch_expand_heads(at_, dtype_, with_strides(from.batch_stride, from.row_stride),
                                     from.data, to.data),
                 "attention's key heads");
      return {to.data, to.batch_stride, to.row_stride};
    }
    void fold(int index, MutableHeadsView to) const {
      check_cuda(launch_fold_heads(at_, dtype_, with_strides(to.batch_stride, to.row_stride),
                                   place(index).data, to.data),
                 "attention's key heads");
    }

   private:
    GroupedHeads with_strides(std::int64_t batch_stride, std::int64_t row_stride) const {
      GroupedHeads shape = shape_;
      shape.batch_stride = batch_stride;
      shape.row_stride = row_stride;
      return shape;
    }
    Launch at_;
    GroupedHeads shape_;
    DType dtype_;
    std::int64_t row_;
    std::size_t bytes_;
    Buffer memory_;
  };

  void check_kept(const AttentionShape& s) const {
    SHOAL_CHECK(!s.kept.defined() || (s.kept.dtype == DType::u8 && kept_bytes(s) > 0 &&
                                      s.kept.shape.count() == kept_bytes(s)),
                "attention: kept is {} {}, not {} of u8", to_string(s.kept.dtype),
                to_string(s.kept.shape), kept_bytes(s));
  }

  // Tries to run the call with cuDNN. Returns false if our own kernels must run it.
  bool by_cudnn(const AttentionShape& s, const Tensors& t, Stream stream, cudaStream_t native) {
    if (choice_ == Choice::own || choice_ == Choice::products) return false;
    if (const char* why = beyond_cudnn(s, t, resources_.capability())) return declined(s, t, why);
    if (!started()) return declined(s, t, missing_);
    const std::int64_t all = rows_of(s), rows = t.backward ? piece(s) : all;
    if (s.sequences.defined() && all > kMostPackedPieces * rows)
      return declined(s, t, "packed sequences are many, each a batch row of its own to cuDNN");
    // Makes both plans before queuing anything, since either may be refused.
    for (const std::int64_t count : {rows, all % rows}) {
      if (count == 0) continue;
      const std::string& why = CudnnAttention::refusal(cudnn_->plan(key_of(s, t, count)));
      if (!why.empty()) return declined(s, t, why);
    }
    if (s.sequences.defined())
      run_packed(s, t, rows, stream, native);
    else
      for (std::int64_t first = 0; first < all; first += rows)
        run_cudnn(s, t, first, std::min(rows, all - first), stream, native);
    return true;
  }

  // Runs `rows` sequences at a time. cuDNN's sums are ordered by token, ours by head.
  void run_packed(const AttentionShape& s, const Tensors& t, std::int64_t rows, Stream stream,
                  cudaStream_t native) {
    const std::int64_t all = rows_of(s);
    const auto lines = [](std::int64_t bytes) {
      return (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
    };
    const std::size_t sums = lines(s.batch * s.query_length * s.heads * 4),
                      numbers = lines((rows + 1) * 4);
    std::size_t workspace = 0;
    for (const std::int64_t count : {rows, all % rows})
      if (count > 0)
        workspace =
            std::max(workspace, CudnnAttention::workspace_bytes(cudnn_->plan(key_of(s, t, count))));
    const Buffer scratch =
        resources_.scratch(2 * sums + (kPackedTensors + 2) * numbers + workspace, stream);
    char* const base = static_cast<char*>(scratch.data());
    CudnnAttentionPointers p;
    p.q = t.q.data, p.k = t.k.data, p.v = t.v.data, p.out = const_cast<void*>(t.out.data);
    p.dout = t.dout.data;
    p.dq = const_cast<void*>(t.dq.data), p.dk = const_cast<void*>(t.dk.data);
    p.dv = const_cast<void*>(t.dv.data);
    p.log_sum_exp = base, p.delta = base + sums;
    PackedOffsets packed;
    packed.sequences = static_cast<const std::int32_t*>(s.sequences.data);
    packed.rows = static_cast<int>(s.batch);
    packed.of_row = static_cast<int>(s.sequences.shape[1]);
    packed.length = static_cast<int>(s.query_length);
    const HeadsView views[] = {t.q, t.k, t.v, t.out, t.dout, t.dq, t.dk, t.dv};
    char* next = base + 2 * sums;
    const auto take = [&] {
      return reinterpret_cast<std::int32_t*>(std::exchange(next, next + numbers));
    };
    for (std::size_t i = 0; i < kPackedTensors; ++i) {
      packed.row[i] = i < std::size(views) ? views[i].row_stride : s.heads;
      packed.offsets[i] = p.offsets[i] = take();
    }
    packed.query_lengths = p.query_lengths = take();
    packed.key_lengths = p.key_lengths = take();
    const Launch at = launch_on(native);
    const int batch = static_cast<int>(s.batch), heads = static_cast<int>(s.heads),
              length = static_cast<int>(s.query_length);
    auto* const by_token = reinterpret_cast<float*>(base);
    if (t.backward)
      check_cuda(launch_sums_by_token(at, t.log_sum_exp, batch, heads, length, by_token),
                 "attention's sums");
    for (std::int64_t first = 0; first < all; first += rows) {
      const std::int64_t count = std::min(rows, all - first);
      packed.first = static_cast<int>(first);
      packed.count = static_cast<int>(count);
      check_cuda(launch_packed_offsets(at, packed), "attention's sequences");
      cudnn_->run(cudnn_->plan(key_of(s, t, count)), p, s.scale, next, native);
    }
    if (!t.backward && t.log_sum_exp)
      check_cuda(launch_sums_by_head(at, by_token, batch, heads, length, t.log_sum_exp),
                 "attention's sums");
  }

  // Runs batch rows [first, first + count).
  void run_cudnn(const AttentionShape& s, const Tensors& t, std::int64_t first, std::int64_t count,
                 Stream stream, cudaStream_t native) {
    const CudnnAttention::Plan& plan = cudnn_->plan(key_of(s, t, count));
    const auto at = [&](HeadsView view) {
      const std::int64_t offset = first * view.batch_stride;
      return const_cast<char*>(static_cast<const char*>(view.data)) +
             offset * static_cast<std::int64_t>(size_of(s.dtype));
    };
    CudnnAttentionPointers p;
    p.q = at(t.q), p.k = at(t.k), p.v = at(t.v), p.out = at(t.out);
    if (t.log_sum_exp) p.log_sum_exp = t.log_sum_exp + first * s.heads * s.query_length;
    if (t.backward) p.dout = at(t.dout), p.dq = at(t.dq), p.dk = at(t.dk), p.dv = at(t.dv);
    // Scratch for delta, or for a log_sum_exp that the caller does not want. Rounded to 256 bytes
    // to keep the workspace aligned.
    const std::size_t sums = t.backward || !t.log_sum_exp ? sums_bytes(s, count) : 0;
    const std::int32_t* lengths = key_lengths_of(s);
    const std::size_t counts =
        lengths ? (static_cast<std::size_t>(count) * sizeof *lengths + 255) / 256 * 256 : 0;
    const std::size_t bytes = sums + 2 * counts + CudnnAttention::workspace_bytes(plan);
    const Buffer scratch = bytes ? resources_.scratch(bytes, stream) : Buffer{};
    char* const base = static_cast<char*>(scratch.data());
    if (t.backward)
      p.delta = base;
    else if (!t.log_sum_exp)
      p.log_sum_exp = base;
    if (lengths) {
      p.query_lengths = reinterpret_cast<std::int32_t*>(base + sums);
      p.key_lengths = reinterpret_cast<std::int32_t*>(base + sums + counts);
      check_cuda(launch_count_rows(launch_on(native), lengths + first, static_cast<int>(count),
                                   static_cast<int>(s.query_length), static_cast<int>(s.key_length),
                                   p.query_lengths, p.key_lengths),
                 "attention's lengths");
    }
    cudnn_->run(plan, p, s.scale, base + sums + 2 * counts, native);
    if (lengths) clear_padding(s, t, p, count, native);
  }

  Launch launch_on(cudaStream_t native) const { return {native, resources_.multiprocessors()}; }

  // Runs after cuDNN, which leaves padding undefined.
  void clear_padding(const AttentionShape& s, const Tensors& t, const CudnnAttentionPointers& p,
                     std::int64_t count, cudaStream_t native) const {
    PaddedTensors padded;
    padded.lengths = p.key_lengths;
    padded.batch = static_cast<int>(count);
    padded.heads = static_cast<int>(s.heads);
    padded.queries = static_cast<int>(s.query_length);
    padded.keys = static_cast<int>(s.key_length);
    padded.channels = static_cast<int>(s.heads * s.head_dim);
    const auto add = [&](void* data, HeadsView view, bool of_keys) {
      padded.tensors[padded.count++] = {data, view.batch_stride, view.row_stride, of_keys};
    };
    if (t.backward) {
      add(p.dq, t.dq, false);
      add(p.dk, t.dk, true);
      add(p.dv, t.dv, true);
    } else {
      add(p.out, t.out, false);
      padded.log_sum_exp = static_cast<float*>(p.log_sum_exp);
    }
    check_cuda(launch_clear_padding(launch_on(native), padded), "attention's padding");
  }

  // Number of batch rows per gradient call of cuDNN, whose deterministic form keeps [rows, heads,
  // queries, keys] 16-bit gradients of scores.
  std::int64_t piece(const AttentionShape& s) const {
    const auto whole_tiles = [](std::int64_t length) { return (length + 63) / 64 * 64; };
    const std::int64_t row_bytes =
        2 * s.heads * whole_tiles(s.query_length) * whole_tiles(s.key_length);
    // The log_sum_exp of each piece must also be aligned.
    const std::int64_t all = rows_of(s);
    if (workspace_ == 0 || (!s.sequences.defined() && s.heads * s.query_length % 4 != 0))
      return all;
    const std::int64_t most = std::clamp<std::int64_t>(workspace_ / row_bytes, 1, all);
    // A divisor of all rows needs only one plan.
    for (std::int64_t rows = most; 2 * rows > most; --rows)
      if (all % rows == 0) return rows;
    return most;
  }

  // False if there is no cuDNN; missing_ then holds the reason.
  bool started() {
    if (cudnn_ || !missing_.empty()) return cudnn_.has_value();
    try {
      cudnn_.emplace();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::out_of_memory) throw;  // the next call tries again
      missing_ = error.what();
    }
    return cudnn_.has_value();
  }

  bool declined(const AttentionShape& s, const Tensors& t, const std::string& why) const {
    const std::string text =
        fmt::format("attention{} of {} ({} queries, {} keys, head_dim {}) is not by cuDNN: {}",
                    t.backward ? "'s gradient" : "", to_string(s.dtype), s.query_length,
                    s.key_length, s.head_dim, why);
    if (choice_ == Choice::cudnn)
      throw Error(ErrorCode::unavailable, text,
                  fmt::format("leave {} unset", env::kCudaAttention.name));
    log::once(log::Level::info, fmt::format("attention {} {}", t.backward, why), text);
    return false;
  }

  // 32-bit words of kept bits per query.
  static int kept_words(const AttentionShape& s) {
    return static_cast<int>((s.key_length + 31) / 32);
  }

  // Bytes of kept bits; 0 without dropout.
  static std::int64_t drawn_bytes(const AttentionShape& s) {
    return s.dropout > 0 ? s.batch * s.heads * s.query_length * kept_words(s) * 4 : 0;
  }

  static std::size_t sums_bytes(const AttentionShape& s, std::int64_t batch) {
    return static_cast<std::size_t>(batch * s.heads * s.query_length * 4 + 255) / 256 * 256;
  }

  // Reason why our own fused kernels cannot run the call; empty: they can.
  std::string beyond_fused(const AttentionShape& s, bool backward) const {
    if (s.relative_bias.defined()) return "fused kernels know no bias by relative position";
    if (resources_.capability() < kFusedCapability)
      return fmt::format("fused kernels need compute capability 8.0, and {} has {}.{}",
                         to_string(resources_.device()), resources_.capability() / 10,
                         resources_.capability() % 10);
    if (s.head_dim > kFlashMaxHeadDim)
      return fmt::format("fused kernels are made for head_dim up to {}, not {}", kFlashMaxHeadDim,
                         s.head_dim);
    const int head_dim = static_cast<int>(s.head_dim);
    const int bytes = backward ? flash_backward_shared_bytes(flash_type(s.dtype), head_dim)
                               : flash_forward_shared_bytes(flash_type(s.dtype), head_dim);
    if (bytes > shared_limit_)
      return fmt::format(
          "the fused kernel of {} and head_dim {}{} needs {} bytes of shared memory, and {} has {}",
          to_string(s.dtype), s.head_dim, backward ? " for gradients" : "", bytes,
          to_string(resources_.device()), shared_limit_);
    return {};
  }

  // True if a call that cuDNN does not run needs attention by products.
  bool goes_by_products(const AttentionShape& s, bool backward) const {
    return choice_ == Choice::products || !beyond_fused(s, backward).empty();
  }

  void own(const AttentionShape& s, Tensors t, Stream stream, cudaStream_t native) {
    Buffer ranges;
    if (s.sequences.defined()) {
      ranges = resources_.scratch(
          static_cast<std::size_t>(s.batch * s.query_length) * sizeof(FlashRange), stream);
      auto* const of_tokens = static_cast<FlashRange*>(ranges.data());
      check_cuda(
          flash_token_ranges(static_cast<const std::int32_t*>(s.sequences.data),
                             static_cast<int>(s.sequences.shape[1]), static_cast<int>(s.batch),
                             static_cast<int>(s.query_length), of_tokens, native),
          "attention's sequences");
      t.sequences = of_tokens;
    }
    if (choice_ == Choice::products) return by_products(s, t, stream);
    const std::string why = beyond_fused(s, t.backward);
    if (why.empty()) return by_flash(s, t, stream, native);
    if (choice_ == Choice::own)
      throw Error(ErrorCode::unavailable, "attention: " + why,
                  fmt::format("leave {} unset", env::kCudaAttention.name));
    log::once(log::Level::info, "attention products " + why,
              fmt::format("attention by products of scores, at most {} MiB of them at a time: {}",
                          workspace_ >> 20, why));
    by_products(s, t, stream);
  }

  void by_products(const AttentionShape& s, const Tensors& t, Stream stream) {
    const auto written = [](HeadsView view) {
      return MutableHeadsView{const_cast<void*>(view.data), view.batch_stride, view.row_stride};
    };
    if (t.backward)
      products_.backward(s, t.sequences, t.q, t.k, t.v, t.log_sum_exp, t.dout, written(t.dq),
                         written(t.dk), written(t.dv), stream);
    else
      products_.forward(s, t.sequences, t.q, t.k, t.v, written(t.out), t.log_sum_exp, stream);
  }

  // Dropout's bits are drawn once, into AttentionShape::kept for backward, or else into scratch
  // memory.
  void by_flash(const AttentionShape& s, const Tensors& t, Stream stream, cudaStream_t native) {
    FlashArgs a = flash_args(s, t);
    const std::size_t delta = t.backward ? 2 * sums_bytes(s, s.batch) : 0;
    const auto bits = static_cast<std::size_t>(drawn_bytes(s));
    const bool keeps = bits > 0 && s.kept.defined();
    const std::size_t bytes = delta + (keeps ? 0 : bits);
    const Buffer scratch = bytes ? resources_.scratch(bytes, stream) : Buffer{};
    a.delta = static_cast<float*>(scratch.data());
    if (bits > 0) {
      auto* kept = static_cast<std::uint32_t*>(
          keeps ? s.kept.data : static_cast<void*>(static_cast<char*>(scratch.data()) + delta));
      a.kept_words = kept_words(s);
      if (!keeps || !t.backward) {
        FlashDropout d;
        d.site = s.site;
        d.threshold = dropout_threshold(s.dropout);
        d.max_positions = s.max_positions;
        d.head_offset = s.head_offset;
        check_cuda(flash_kept_bits(a, d, kept, native), "attention's dropout");
      }
      a.kept = kept;
      a.keep_scale = 1 / (1 - s.dropout);
    }
    if (t.backward)
      check_cuda(flash_backward(flash_type(s.dtype), a, native), "attention's gradient");
    else
      check_cuda(flash_forward(flash_type(s.dtype), a, native), "attention");
  }

  CudaResources& resources_;
  Choice choice_;
  std::int64_t workspace_;  // bytes; 0: unlimited
  int shared_limit_ = 0;    // bytes of shared memory that a block may have
  AttentionProducts products_;
  std::optional<CudnnAttention> cudnn_;
  std::string missing_;
};

}  // namespace

std::unique_ptr<AttentionKernels> make_cuda_attention(CudaResources& resources, CudaGemm& gemm) {
  return std::make_unique<CudaAttention>(resources, gemm);
}

}  // namespace shoal::kernels
