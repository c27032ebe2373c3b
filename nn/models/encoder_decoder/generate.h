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
// (generation_config.json). `key_mask`: ChainInput::key_mask. Deterministic in (weights, input,
// options, numbers).
std::vector<std::vector<std::int32_t>> generate(Context& context, EncoderDecoder& model,
                                                const Tensor& ids, const Tensor& key_mask,
                                                const GenerationOptions& options,
                                                TextNumbers numbers = {});

// For callers that search themselves (generation/search.h): the options with which generate()
// searches, checked against the model, and the id before the first new token.
GenerationOptions search_options(const EncoderDecoder& model, const GenerationOptions& options);
std::int32_t start_id(const EncoderDecoder& model);

}  // namespace shoal::nn
