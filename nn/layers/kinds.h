// The kinds of layers that parallelism can replace (parallel/apply). Slots have these types.
//
//   struct Identity final : NormLike {  // for a model without norms
//     std::string_view kind() const override { return "Identity"; }
//     Value forward(Context&, const Value& x) override { return x; }
//   };
//   norm.replace(std::make_unique<Identity>());  // Slot<NormLike> norm of a block
//
// Activations are on the kernels' device. forward() queues its work on context.stream; a host
// stream runs it at once. Mismatched shapes throw invalid_argument.
#pragma once

#include <memory>
#include <optional>

#include "shoal/nn/layers/functional.h"
#include "shoal/nn/layers/module.h"

namespace shoal::nn {

class Lora;
struct Decoding;
struct LoraConfig;

class LinearLike : public Module {  // a product with a weight
 public:
  // activation(x·W + b), with an adapter as in lora.h; x [.., in] -> [.., out]
  virtual Value forward(Context& context, const Value& x) = 0;
  // Adds a LoRA adapter, whose factors are divided as the weight is. Call before materialize(), and
  // the root's name_tree() afterwards. Throws if the layer has one or adaptable() has no weight.
  void adapt(const LoraConfig& config);
  Lora* lora() const;  // null: not adapted
  struct Adaptable {
    const Parameter* weight = nullptr;  // null: LoRA cannot adapt this kind of layer
    bool transposed = true;             // weight is [out, in]
    // The layer itself completes the gradient of the adapter's inner product, of which a part of
    // the outputs gives only a part.
    bool completes_inner = false;
  };
  virtual Adaptable adaptable() const { return {}; }

 private:
  std::optional<Slot<Lora>> lora_;
};

class NormLike : public Module {  // normalises the last dimension
 public:
  virtual Value forward(Context& context, const Value& x) = 0;  // [.., C] -> [.., C]
  // Returns sum = x, since the residual goes on unchanged, and normed = norm(x).
  virtual ResidualNorm fork(Context& context, const Value& x);
  // sum = residual + dropout(branch), normed = norm(sum). Layers may fuse it.
  virtual ResidualNorm forward(Context& context, const Value& residual, const Value& branch,
                               const DropoutSite& site);
};

class EmbeddingLike : public Module {  // looks up rows of a table
 public:
  virtual Value forward(Context& context, const Tensor& ids) = 0;  // i32 [B, T] -> [B, T, C]
  virtual const std::shared_ptr<Parameter>& weight() const = 0;    // [V, C]; may be tied
};

// Keys and values of one block's earlier positions, for generation. Filled in place.
struct KeyValueCache {
  Tensor entries{};           // [B, capacity, 2·W]: for each position its key, then its value
  std::int64_t length = 0;    // positions filled
  std::int64_t capacity = 0;  // of undefined entries: the first call makes so many
};

// Keys and values of one block's cross-attention, for generation. The first call fills them. In
// later calls x may have n·B rows: rows [n·b, n·b + n) see the keys of row b.
struct EncodedKeys {
  Tensor keys, values;  // [B, S, W]
};

// The visible positions of padded samples, for layers that compute only these: the hidden states
// between a chain's embeddings and its head are then [n, C]. Both tensors are defined, or neither.
struct VisibleRows {
  Tensor rows;    // i32 [n]: which rows of [B, T], each once, ascending; negative ones are filling
  Tensor places;  // i32 [B, T]: where each position is among `rows`; negative: it is not visible
  bool defined() const { return rows.defined(); }
};

// Computes them from lengths i32 [B] of samples padded to `length`, in host memory. The filling
// brings n to a multiple of `granularity`. A sample of length 0 keeps its first position, which a
// head may read. Undefined if less than an eighth is saved.
VisibleRows visible_rows(const Tensor& lengths, std::int64_t length, std::int64_t granularity,
                         MemoryResource& memory);

struct AttentionInput {  // the inputs of an attention call besides x
  // Optional u8 [B, keys], 1 for visible keys, cached keys first; or i32 [B], the number of keys.
  Tensor key_mask{};
  KeyValueCache* cache = nullptr;  // inference: attend to it and append to it
  // As in ChainInput. With a cache, `positions` are those of x, and `sequences` is undefined.
  Tensor sequences{}, positions{};
  // Cross-attention: the hidden states [B, S, C] that keys and values are made of. Null: x.
  const Value* encoded = nullptr;
  EncodedKeys* encoded_keys = nullptr;  // inference: keeps what is made of `encoded`
  VisibleRows visible{};                // defined: x is [n, C]; with key_mask i32 [B]
};
class AttentionLike : public Module {  // x [B, T, C] or [n, C] -> the same
 public:
  virtual Value forward(Context& context, const Value& x, const AttentionInput& input) = 0;
};

class MlpLike : public Module {  // computes each position independently
 public:
  virtual Value forward(Context& context, const Value& x) = 0;  // [.., C] -> [.., C]
};

using LossOutput = LossResult;
class HeadLoss : public Module {  // hidden states to logits and their loss
 public:
  // Hidden states [B, T, C] and targets i32 [B, T] (negative: none), shifted by the task.
  virtual LossOutput forward(Context& context, const Value& hidden, const Tensor& targets,
                             const LossOptions& options) = 0;
  virtual Tensor logits(Context& context, const Tensor& hidden) = 0;  // [.., C] -> [.., V]
  virtual const std::shared_ptr<Parameter>& weight() const = 0;       // [V, C]; may be tied
};

}  // namespace shoal::nn
