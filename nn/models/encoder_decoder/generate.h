// Text generation with encoder-decoders, for a batch.
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/nn/models/generation/options.h"

namespace shoal::nn {

// Returns the new tokens of num_return_sequences sequences of each sample of ids i32 [B, S],
// without the start id. A sequence ends after a stop token, which is kept, or after max_new_tokens.
// Where the options have no forced_bos_token_id or forced_eos_token_id, the model's apply
// (generation_config.json). `key_mask`: ChainInput::key_mask. `first_sample` numbers the batch's
// first sample, for sampling. Deterministic in (weights, input, options, sample).
std::vector<std::vector<std::int32_t>> generate(Context& context, EncoderDecoder& model,
                                                const Tensor& ids, const Tensor& key_mask,
                                                const GenerationOptions& options,
                                                std::uint32_t first_sample = 0);

}  // namespace shoal::nn
