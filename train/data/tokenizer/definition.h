// A tokenizer.json in memory, checked. Internal to this room.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/train/data/tokenizer/bpe_model.h"
#include "shoal/train/data/tokenizer/byte_level_bpe.h"
#include "shoal/train/data/tokenizer/split_pattern.h"

namespace shoal {

struct BpeDefinition {
  std::vector<std::optional<std::string>> tokens;  // of the model, by id
  std::vector<std::pair<std::string, std::string>> merges;
  BpeModelOptions model;
  std::vector<std::pair<AddedToken, TokenId>> added;

  std::vector<SplitPattern> splits;  // before ByteLevel; GPT-2's pattern is gpt2_words instead
  bool gpt2_words = true;
  bool add_prefix_space = false;

  bool trim_offsets = false;           // the post-processor leaves white space out of offsets
  bool trim_prefix_space = false;      // ... but not the space that add_prefix_space put there
  std::vector<TokenId> before, after;  // what it puts around the ids

  // As they stood, for writing the file again; keys sorted, so that one tokenizer has one text.
  nlohmann::json pre_tokenizer, post_processor, decoder;
};

// Throws as ByteLevelBpe::from_json says.
BpeDefinition parse_tokenizer_json(std::string_view text, const std::string& source);
BpeDefinition parse_vocab_and_merges(std::string_view vocab_json, std::string_view merges_txt,
                                     const std::string& source, const BpeFileOptions& options);

// The parts of a definition that has none: ByteLevel throughout, as GPT-2 has them.
void set_gpt2_parts(BpeDefinition& definition, bool add_prefix_space, bool trim_offsets);

// Gives each token the vocabulary's id or the next free one, as Hugging Face's add_tokens does.
void add_tokens(BpeDefinition& definition, const std::vector<AddedToken>& tokens);

// Writers. Keys in the order in which Hugging Face writes them.
std::string tokenizer_json_of(const BpeModel& model, const BpeDefinition& definition);
std::string vocab_json_of(const BpeModel& model);
std::string merges_txt_of(const BpeModel& model);

}  // namespace shoal
