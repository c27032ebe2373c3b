// cuDNN's fused attention, through its backend interface: graphs of operations that cuDNN runs as
// one forward kernel and a few backward ones. Backward always uses the deterministic form.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include "shoal/kernels/attention.h"

namespace shoal::kernels {

// Strides, in elements, of a tensor [batch, heads, length, head_dim]. The stride between heads is
// head_dim.
struct CudnnStrides {
  std::int64_t batch = 0, row = 0;
  friend auto operator<=>(const CudnnStrides&, const CudnnStrides&) = default;
};

// Everything that determines a plan.
struct CudnnAttentionKey {
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0, head_dim = 0;
  DType dtype = DType::bf16;
  bool causal = false, backward = false;
  bool lengths = false;  // keys have one length per batch row; with causal, queries = keys
  // Batch rows are packed sequences of at most `queries` = `keys` tokens, given by offsets and
  // lengths. Batch strides are ignored, and log_sum_exp and delta are [tokens, heads].
  bool packed = false;
  CudnnStrides q, k, v, out, dout, dq, dk, dv;
  friend auto operator<=>(const CudnnAttentionKey&, const CudnnAttentionKey&) = default;
};

// Device pointers of one call, 16-byte aligned. log_sum_exp and delta are [B, heads, queries] f32;
// delta is scratch. Forward uses q, k, v, out and log_sum_exp. query_lengths and key_lengths [B]
// are needed if the key has lengths.
// cuDNN leaves undefined: queries beyond their length, batch rows without keys, and gradients of
// keys beyond their length.
struct CudnnAttentionPointers {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void *out = nullptr, *log_sum_exp = nullptr;
  const void* dout = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr, *delta = nullptr;
  std::int32_t *query_lengths = nullptr, *key_lengths = nullptr;
  // If packed: [B + 1] offsets in elements from the tensor's start, for each tensor in the order of
  // CudnnAttentionKey's strides. The last one is for log_sum_exp and delta.
  std::array<std::int32_t*, 9> offsets{};
};

// Owns a cuDNN handle and plans. Single-threaded. The constructor throws unavailable in a build
// without cuDNN (no_cudnn.cc). If cuDNN runs out of memory, calls throw out_of_memory and may be
// retried.
class CudnnAttention {
 public:
  // Uses the current device. With `device_json` (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION) it
  // plans for the described device instead, to find out what cuDNN accepts there; nothing can be
  // run then.
  explicit CudnnAttention(const std::string& device_json = {});
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  struct Plan;
  // Makes a plan at the first call with this key, then looks it up. cuDNN takes about a second to
  // compile it, outside of stream capture. The time is logged at debug level. If cuDNN refuses,
  // refusal() gives the reason. The plan is valid until the next call. Beyond 1024 plans the least
  // recently used one that was not captured is removed, after waiting for the device; this is
  // logged once.
  const Plan& plan(const CudnnAttentionKey& key);
  static const std::string& refusal(const Plan& plan);  // empty: it can be run
  static std::size_t workspace_bytes(const Plan& plan);

  // Queues the call; workspace is 16-byte aligned. Throws internal with cuDNN's message, or
  // out_of_memory.
  void run(const Plan& plan, const CudnnAttentionPointers& pointers, float scale, void* workspace,
           cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string cudnn_version();  // "cuDNN 9.19.0", or "no cuDNN"

}  // namespace shoal::kernels
