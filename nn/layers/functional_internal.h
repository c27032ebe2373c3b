// Further operations, used only by Shoal's own layers. Not installed.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "shoal/nn/layers/kinds.h"

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

// The Function of a loss whose forward also computed its gradients. Backward returns dx, undefined
// if x is a constant, and ends one use of each of `parameters`, which may be null. `name` must have
// static storage.
std::unique_ptr<Function> computed_loss(Tape& tape, std::string_view name, const Tensor& dx,
                                        std::vector<Parameter*> parameters = {});

}  // namespace shoal::nn
