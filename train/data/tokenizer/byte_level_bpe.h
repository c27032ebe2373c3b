// Byte-level BPE, as in GPT-2 (Radford et al. 2019) and RoBERTa. A pattern splits text into words;
// a word's bytes become symbols; the adjacent pair with the lowest rank is merged until no pair has
// a rank.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {

// Settings that vocab.json and merges.txt do not contain.
struct BpeFileOptions {
  bool add_prefix_space = false;  // the default of RoBERTa and GPT-2
  bool trim_offsets = false;
  // Added in this order; tokens in the vocabulary keep their ids. Default: GPT-2's.
  std::vector<AddedToken> added_tokens = {{.content = "<|endoftext|>"}};
  StatedTokens stated_tokens = {};  // added before added_tokens
};

class ByteLevelBpe final : public TokenizerBase {
 public:
  // From the texts of vocab.json and merges.txt.
  static std::shared_ptr<const ByteLevelBpe> from_vocab_and_merges(
      std::string_view vocab_json, std::string_view merges_txt, const std::string& source,
      const BpeFileOptions& options = {});

  struct Impl;  // byte_level_bpe.cc
  using TokenizerBase::TokenizerBase;
};

}  // namespace shoal
