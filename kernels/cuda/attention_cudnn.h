// Fused attention of cuDNN, through its backend interface: graphs of operations that cuDNN runs as
// one kernel forward and a few backward. The deterministic form of backward is the one asked for.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include "shoal/kernels/attention.h"

namespace shoal::kernels {

// A tensor [batch, heads, length, head_dim] by its strides in elements; a head's is head_dim.
struct CudnnStrides {
  std::int64_t batch = 0, row = 0;
  friend auto operator<=>(const CudnnStrides&, const CudnnStrides&) = default;
};

// What a plan depends on.
struct CudnnAttentionKey {
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0, head_dim = 0;
  DType dtype = DType::bf16;
  bool causal = false, backward = false;
  bool lengths = false;  // of the keys of each batch row; with causal, as many queries as keys
  // Batch rows are packed sequences, of at most queries = keys tokens, which begin where offsets
  // say; they have lengths, batch strides say nothing, and log_sum_exp and delta are
  // [tokens, heads].
  bool packed = false;
  CudnnStrides q, k, v, out, dout, dq, dk, dv;
  friend auto operator<=>(const CudnnAttentionKey&, const CudnnAttentionKey&) = default;
};

// Pointers of one call, on the device, 16-byte aligned. log_sum_exp and delta [B, heads, queries]
// f32; delta is scratch. Forward uses q, k, v, out and log_sum_exp. query_lengths and key_lengths
// [B]: what a key with lengths asks for. Queries from theirs on, and a batch row without keys, get
// whatever cuDNN leaves there; so do gradients of keys from theirs on.
struct CudnnAttentionPointers {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *out = nullptr, *log_sum_exp = nullptr;
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr, *delta = nullptr;
  std::int32_t *query_lengths = nullptr, *key_lengths = nullptr;
  // [B + 1], where packed: in elements from the tensor's begin, of each of them in the order of
  // CudnnAttentionKey's strides; the last one is log_sum_exp's and delta's.
  std::array<std::int32_t*, 9> offsets{};
};

// Owns a handle and plans. One thread at a time. Its constructor throws unavailable in a build
// without cuDNN (no_cudnn.cc). What fails because cuDNN finds no memory throws out_of_memory, and
// may be tried again.
class CudnnAttention {
 public:
  // For the current device; or, to find out elsewhere what cuDNN accepts, for a device described
  // as CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION says (nothing can be run then).
  explicit CudnnAttention(const std::string& device_json = {});
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  struct Plan;
  // Made at the first call with this key (cuDNN compiles: about a second, logged at debug level,
  // and not while a stream is being captured), then looked up. Where cuDNN refuses, refusal() says
  // why. Valid until the next call: of more than 1024 plans those used the longest ago are given
  // up, but for those that were captured, after waiting for the device; said once.
  const Plan& plan(const CudnnAttentionKey& key);
  static const std::string& refusal(const Plan& plan);  // empty: it can be run
  static std::size_t workspace_bytes(const Plan& plan);

  // Queues it; workspace is 16-byte aligned. Throws internal naming cuDNN's complaint, but for
  // memory.
  void run(const Plan& plan, const CudnnAttentionPointers& pointers, float scale, void* workspace,
           cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string cudnn_version();  // "cuDNN 9.19.0", or "no cuDNN"

}  // namespace shoal::kernels
