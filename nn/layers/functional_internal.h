// Operations besides those of functional.h that only Shoal's own layers use. Not installed.
#pragma once

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

}  // namespace shoal::nn
