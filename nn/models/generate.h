// Text generation, token by token, with a key-value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/generation/options.h"

namespace shoal::nn {

// Continues each prompt (at least one id; prompt + max_new_tokens <= positions) and returns the new
// tokens of num_return_sequences sequences of each. Shorter prompts are padded on the left, which
// changes no text: each gets the tokens that it gets alone, but for rounding.
// Deterministic in (weights, prompts, options, numbers).
std::vector<std::vector<std::int32_t>> generate_batch(
    Context& context, CausalLm& model, const std::vector<std::vector<std::int32_t>>& prompts,
    const GenerationOptions& options, TextNumbers numbers = {});

// The best sequence of one prompt. `on_token` receives each token, except those of beam search, as
// soon as it is chosen; returning false stops.
std::vector<std::int32_t> generate(Context& context, CausalLm& model,
                                   const std::vector<std::int32_t>& prompt,
                                   const GenerationOptions& options, std::uint32_t number = 0,
                                   const std::function<bool(std::int32_t)>& on_token = {});

}  // namespace shoal::nn
