// Text generation with encoder-decoders, for a batch.
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/nn/models/generate.h"

namespace shoal::nn {

// Returns the new tokens of each sample of ids i32 [B, S], without the start id. A sample ends
// after a stop token, which is kept, or after max_new_tokens; forced_bos_token_id
// and forced_eos_token_id (generation_config.json) take the first and the last place. `key_mask`:
// ChainInput::key_mask. `first_sample` numbers the batch's first sample, for sampling.
// Deterministic in (weights, input, options, sample).
std::vector<std::vector<std::int32_t>> generate(Context& context, EncoderDecoder& model,
                                                const Tensor& ids, const Tensor& key_mask,
                                                const GenerationOptions& options,
                                                std::uint32_t first_sample = 0);

}  // namespace shoal::nn
