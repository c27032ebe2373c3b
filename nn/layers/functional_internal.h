// Further operations, used only by Shoal's own layers. Not installed.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "shoal/nn/layers/self_attention.h"

namespace shoal::nn {

// Adds the rows of dy [.., C] to table.gradient, except row `padding`.
void add_embedding_gradient(Context& context, Parameter& table, const Tensor& ids, const Tensor& dy,
                            std::int64_t padding);

// For generation, without a tape. Appends keys and values to the cache; each query attends to
// cached positions up to its own.
Value cached_attention(Context& context, const Value& qkv, KeyValueCache& cache,
                       const AttentionOptions& options);
Value cached_attention(Context& context, const Value& queries, const Value& keys,
                       const Value& values, KeyValueCache& cache, const AttentionOptions& options);

// a · b, of equal shapes
Value multiply(Context& context, const Value& a, const Value& b);
Value scaled(Context& context, const Value& x, float factor);  // factor · x

// The Linears of a whole SelfAttention; `key` is also the values'.
struct AttentionLinears {
  LinearConfig query, key, output;
};
AttentionLinears linears_of(const SelfAttentionConfig& config);
// The options of its attention(), for all heads; under tensor parallelism the caller sets its own.
AttentionOptions attention_options(Context& context, const SelfAttentionConfig& config,
                                   const Dropout& dropout, const Tensor& key_mask,
                                   std::int64_t queries, std::int64_t keys);

// The Function of a loss whose forward also computed its gradients. Backward returns dx, undefined
// if x is a constant, and ends one use of each of `parameters`, which may be null. `name` must have
// static storage.
std::unique_ptr<Function> computed_loss(Tape& tape, std::string_view name, const Tensor& dx,
                                        std::vector<Parameter*> parameters = {});

}  // namespace shoal::nn
