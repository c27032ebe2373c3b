// Byte-level BPE, as GPT-2 (Radford et al. 2019) and RoBERTa use it: text is split into words by a
// pattern, a word's bytes become symbols, and the pair of lowest rank is merged until none is left.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {

// For vocab.json + merges.txt, which say nothing of these.
struct BpeFileOptions {
  bool add_prefix_space = false;  // RoBERTa and GPT-2 differ from text to text; both default to no
  bool trim_offsets = false;
  // Added in this order; a token of the vocabulary keeps its id. What GPT-2 adds is the default.
  std::vector<AddedToken> added_tokens = {{.content = "<|endoftext|>"}};
  StatedTokens stated_tokens = {};  // before those
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
