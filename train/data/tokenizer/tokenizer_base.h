// The common part of all tokenizers that a tokenizer.json describes: special tokens, roles,
// templates, the file itself and its hash. Each kind adds how it splits and joins text
// (tokenizer_impl.h).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

// A token that is matched in the text before it is split into words, as in Hugging Face.
struct AddedToken {
  std::string content;
  bool single_word = false;  // matches only where no word character is adjacent
  bool lstrip = false;       // also consumes white space to its left
  bool rstrip = false;       // also consumes white space to its right
  bool normalized = false;   // matched in the second pass, on normalized text
  bool special = true;       // omitted by decode(skip_special_tokens)
};

// Added tokens with the ids that a file assigns to them, by id.
using StatedTokens = std::vector<std::pair<AddedToken, TokenId>>;

class TokenizerImpl;

class TokenizerBase : public Tokenizer {
 public:
  explicit TokenizerBase(std::unique_ptr<TokenizerImpl> impl);
  ~TokenizerBase() override;

  std::string to_json() const;  // tokenizer.json

  std::int64_t vocab_size() const final;
  TokenId max_id() const final;
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const final;
  void append_ids(std::string_view text, std::vector<TokenId>& ids,
                  bool add_special_tokens = false) const final;
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = true) const final;
  std::string decode_bytes(std::span<const TokenId> ids,
                           bool skip_special_tokens = true) const final;
  std::optional<TokenId> token_to_id(std::string_view token) const final;
  std::optional<std::string> id_to_token(TokenId id) const final;
  bool is_special(TokenId id) const final;
  const TokenRoles& roles() const final;
  const SequenceTemplate& sequence_template() const final;
  std::vector<File> files() const final;  // the kind's own, then tokenizer.json
  const std::string& hash() const final;

 private:
  std::unique_ptr<TokenizerImpl> impl_;
};

}  // namespace shoal
