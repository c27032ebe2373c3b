// Further operations, used only by Shoal's own layers. Not installed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "shoal/nn/layers/self_attention.h"

namespace shoal::nn {

// Adds the rows of dy [.., C] to table.gradient, except row `padding`.
void add_embedding_gradient(Context& context, Parameter& table, const Tensor& ids, const Tensor& dy,
                            std::int64_t padding);

// NEFTune (Jain et al., 2023), as in transformers: in training, adds uniform noise of at most alpha
// / sqrt(length · C) to x [B, T, C], in place; alpha is context.embedding_noise. `length`:
// positions of whole rows, of which x may hold a slice. Its coordinates are those of DropoutSite.
Value noisy_embedding(Context& context, Value x, std::uint32_t path_hash, std::int64_t length);

// For generation, without a tape. Appends keys and values to the cache; each query attends to
// cached positions up to its own.
Value cached_attention(Context& context, const Value& qkv, KeyValueCache& cache,
                       const AttentionOptions& options);
Value cached_attention(Context& context, const Value& queries, const Value& keys,
                       const Value& values, KeyValueCache& cache, const AttentionOptions& options);

// Row r of the result is row rows[r] of x. Of dim 1, only the first `used` are copied (-1: all).
Tensor selected_rows(Context& context, const Tensor& x, std::span<const std::int64_t> rows,
                     std::int64_t used = -1);
void select_rows(Context& context, KeyValueCache& cache, std::span<const std::int64_t> rows);

// Between hidden states of visible positions and of all: [n, C] -> [B, T, C], with zeros where a
// position is not visible, and back. x itself without `visible`.
Value spread(Context& context, const Value& x, const VisibleRows& visible);
Value without_padding(Context& context, const Value& x, const VisibleRows& visible);

struct KeysAndValues {
  Value keys, values;
};
// The input's encoded_keys, which the first call computes; without them, computes at every call.
KeysAndValues keys_and_values(const AttentionInput& input,
                              const std::function<KeysAndValues()>& compute);
// attention(), or cached_attention(), as the input has a cache.
Value attend_to(Context& context, const Value& queries, const KeysAndValues& seen,
                const AttentionInput& input, const AttentionOptions& options);

// x [.., G·parts·D], in each of G groups D channels of every part -> `parts` (at most 3) tensors
// [.., G·D]. A projection of queries, keys and values has a group for each head, or one for all.
std::vector<Value> split_channels(Context& context, const Value& x, int parts,
                                  std::int64_t groups = 1);
// activation(a) · b, where x is [a b]: [.., 2·C] -> [.., C]
Value gated_halves(Context& context, const Value& x, kernels::Activation activation);

// a · b, of equal shapes
Value multiply(Context& context, const Value& a, const Value& b);
Value scaled(Context& context, const Value& x, float factor);  // factor · x
// cap · tanh(x / cap); x itself if cap is 0.
Value soft_capped(Context& context, const Value& x, float cap);
Value activate(Context& context, const Value& x, kernels::Activation activation);
// dy · activation'(x); in place if dy has no other reference.
Tensor activation_gradient(Context& context, kernels::Activation activation, const Tensor& x,
                           Tensor dy);
// sum + x·Wᵀ, W [out, in]; in place if sum has no other reference.
Value add_linear(Context& context, Value sum, const Value& x, Parameter& weight);

// The Linears of a whole SelfAttention; `key` is also the values'.
struct AttentionLinears {
  LinearConfig query, key, output;
};
AttentionLinears linears_of(const SelfAttentionConfig& config);
// The options of its attention(), for all heads; under tensor parallelism the caller sets its own.
AttentionOptions attention_options(Context& context, const SelfAttentionConfig& config,
                                   const Dropout& dropout, const AttentionInput& input,
                                   const Tensor& queries, const Tensor& keys);

// The Function of a loss whose forward also computed its gradients. Backward returns dx, undefined
// if x is a constant, and ends one use of each of `parameters`, which may be null. `name` must have
// static storage.
std::unique_ptr<Function> computed_loss(Tape& tape, std::string_view name, const Tensor& dx,
                                        std::vector<Parameter*> parameters = {});

}  // namespace shoal::nn
