// Chooses how `shoal generate` generates: the model's generation_config.json and the user's
// options. Turns prompts into tokens, and tokens into text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shoal/nn/models/generation/options.h"
#include "shoal/train/command/choose_model.h"
#include "shoal/train/command/generate.h"
#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal::command {

struct TextLimits {
  bool encodes = false;      // an encoder-decoder
  std::int64_t context = 1;  // ids before the first new token
  std::int64_t room = 0;     // new tokens that fit; warns if fewer fit than wanted
};

// The fields of the model's generation_config.json (without one, of its config.json), with the
// user's in their place. Sampling options of the user's choose sampling, and num_beams beam search.
// `tokenizer` must outlive the result.
nn::GenerationOptions choose_generation(const GenerateOptions& options, const ModelPlace& place,
                                        const Tokenizer& tokenizer, const TextLimits& limits);
// The prompt's tokens: an encoder-decoder's with all special tokens, a decoder's after those that
// begin a text of this model (Llama: <s>).
std::vector<TokenId> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt,
                                bool encodes);
// The text that `tokens` add to that of the tokens `before`.
std::string text_after(const Tokenizer& tokenizer, std::span<const TokenId> before,
                       std::span<const TokenId> tokens);

}  // namespace shoal::command
