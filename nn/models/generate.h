// Text generation, token by token, with a key-value cache.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/generation/options.h"

namespace shoal::nn {

// Continues `prompt` (at least one id; prompt + max_new_tokens <= positions) and returns the new
// tokens. `sample` separates equal prompts with the same seed. `on_token` receives each token;
// returning false stops. Deterministic in (weights, prompt, options, sample).
std::vector<std::int32_t> generate(Context& context, CausalLm& model,
                                   const std::vector<std::int32_t>& prompt,
                                   const GenerationOptions& options, std::uint32_t sample = 0,
                                   const std::function<bool(std::int32_t)>& on_token = {});

// Draws a token from logits [V] (host f32); `uniform` is in [0, 1). Pure.
std::int32_t pick_token(const float* logits, std::int64_t vocabulary,
                        const GenerationOptions& options, double uniform);

}  // namespace shoal::nn
