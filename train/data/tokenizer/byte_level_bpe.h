// Byte-level BPE, as GPT-2 (Radford et al. 2019) and RoBERTa use it: text is split into words by a
// pattern, a word's bytes become symbols, and the pair of lowest rank is merged until none is left.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// A token that is found in text before words are split, as in Hugging Face.
struct AddedToken {
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows white space on its left
  bool rstrip = false;       // ... on its right
  bool normalized = false;   // matched in the second pass (there is no normalizer to apply)
  bool special = true;       // left out by decode(skip_special_tokens)
};

// For vocab.json + merges.txt, which say nothing of these.
struct BpeFileOptions {
  bool add_prefix_space = false;  // RoBERTa and GPT-2 differ from text to text; both default to no
  bool trim_offsets = false;
  // Added in this order; a token of the vocabulary keeps its id. What GPT-2 adds is the default.
  std::vector<AddedToken> added_tokens = {{.content = "<|endoftext|>"}};
};

class ByteLevelBpe final : public Tokenizer {
 public:
  // From the text of a tokenizer.json. What Shoal does not do (a normalizer, dropout,
  // byte_fallback, another model or pre-tokenizer, truncation, padding) is refused by name:
  // `unavailable`. JSON that does not follow the format is `corrupt_data`. `source` (a path)
  // appears in messages.
  static std::shared_ptr<const ByteLevelBpe> from_json(std::string_view json,
                                                       const std::string& source);
  // From the texts of vocab.json and merges.txt.
  static std::shared_ptr<const ByteLevelBpe> from_vocab_and_merges(
      std::string_view vocab_json, std::string_view merges_txt, const std::string& source,
      const BpeFileOptions& options = {});

  std::string to_json() const;  // tokenizer.json

  ~ByteLevelBpe() override;
  std::int64_t vocab_size() const override;
  TokenId max_id() const override;
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const override;
  void append_ids(std::string_view text, std::vector<TokenId>& ids,
                  bool add_special_tokens = false) const override;
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = true) const override;
  std::string decode_bytes(std::span<const TokenId> ids,
                           bool skip_special_tokens = true) const override;
  std::optional<TokenId> token_to_id(std::string_view token) const override;
  std::optional<std::string> id_to_token(TokenId id) const override;
  bool is_special(TokenId id) const override;
  const TokenRoles& roles() const override;
  const SequenceTemplate& sequence_template() const override;
  std::vector<File> files() const override;  // vocab.json, merges.txt, tokenizer.json
  const std::string& hash() const override;

  struct Impl;  // byte_level_bpe.cc
  explicit ByteLevelBpe(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
