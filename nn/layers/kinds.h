// The kinds of layers that parallelism knows how to replace (parallel/apply): the types of slots.
#pragma once

#include <memory>
#include <optional>

#include "shoal/nn/layers/functional.h"
#include "shoal/nn/layers/module.h"

namespace shoal::nn {

class LinearLike : public Module {
 public:
  // activation(x·W + b); x [.., in] -> [.., out]
  virtual Value forward(Context& context, const Value& x) = 0;
};

class NormLike : public Module {
 public:
  virtual Value forward(Context& context, const Value& x) = 0;  // [.., C] -> [.., C]
  // x, which goes on as the residual, and norm(x).
  virtual ResidualNorm fork(Context& context, const Value& x);
  // sum = residual + dropout(branch), normed = norm(sum). Fused where the layer can.
  virtual ResidualNorm forward(Context& context, const Value& residual, const Value& branch,
                               const DropoutSite& site);
};

class EmbeddingLike : public Module {
 public:
  virtual Value forward(Context& context, const Tensor& ids) = 0;  // i32 [B, T] -> [B, T, C]
  virtual const std::shared_ptr<Parameter>& weight() const = 0;    // [V, C], to be tied
};

// Keys and values of earlier positions, for generation: one block's, grown in place.
struct KeyValueCache {
  Tensor entries;           // [B, capacity, 2·W]: keys, then values, of each position
  std::int64_t length = 0;  // positions filled
};

// What ranks that compute a layer together made of an AttentionInput (parallel/tensor).
struct GroupAttentionInput {
  Tensor key_mask{}, sequences{}, positions{};  // of all their samples, where the kernels read them
};

struct AttentionInput {
  // Optional u8 [B, keys], 1 where a key may be seen; cached keys come first. Or i32 [B]: how many.
  Tensor key_mask{};
  KeyValueCache* cache = nullptr;  // inference: attend to it too, and append to it
  // As ChainInput's. Not with a cache.
  Tensor sequences{}, positions{};
  // Where layers that are given the same find what the first of them made of it; null: each makes
  // its own.
  std::shared_ptr<std::optional<GroupAttentionInput>> of_group{};
};
class AttentionLike : public Module {
 public:
  virtual Value forward(Context& context, const Value& x, const AttentionInput& input) = 0;
};

class MlpLike : public Module {
 public:
  virtual Value forward(Context& context, const Value& x) = 0;  // [.., C] -> [.., C]
};

struct LossOutput {
  Value loss;                // [1] f32: sum over valid targets × loss_scale
  Tensor loss_sum;           // [1] f32, unscaled; Context::read() gives the number
  std::int64_t targets = 0;  // valid ones; -1 (not known) where they lie on a device
};
class HeadLoss : public Module {
 public:
  // Hidden states [B, T, C] and targets i32 [B, T] (negative: none), already shifted by the task.
  virtual LossOutput forward(Context& context, const Value& hidden, const Tensor& targets,
                             const LossOptions& options) = 0;
  virtual Tensor logits(Context& context, const Tensor& hidden) = 0;  // [.., C] -> [.., V]
  virtual const std::shared_ptr<Parameter>& weight() const = 0;       // [V, C]; may be tied
};

}  // namespace shoal::nn
