// WordPiece, as BERT and DistilBERT use it: text is normalized, cut at white space and punctuation,
// and a word becomes the longest tokens that spell it, from left to right (Wu et al. 2016).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/bert_normalizer.h"
#include "shoal/train/data/tokenizer/byte_level_bpe.h"

namespace shoal {

// For vocab.txt, which says nothing of these. The defaults are bert-base-uncased's.
struct WordPieceFileOptions {
  BertNormalizerOptions normalize;
  std::string unk_token = "[UNK]", cls_token = "[CLS]", sep_token = "[SEP]";
  // Found in text before anything else; each has to stand in the vocabulary.
  std::vector<AddedToken> special_tokens = {{.content = "[PAD]"},
                                            {.content = "[UNK]"},
                                            {.content = "[CLS]"},
                                            {.content = "[SEP]"},
                                            {.content = "[MASK]"}};
};

class WordPiece final : public Tokenizer {
 public:
  // As ByteLevelBpe's. Read are the parts that BERT's tokenizers have: BertNormalizer,
  // BertPreTokenizer, WordPiece.
  static std::shared_ptr<const WordPiece> from_json(std::string_view json,
                                                    const std::string& source);
  static std::shared_ptr<const WordPiece> from_vocab(std::string_view vocab_txt,
                                                     const std::string& source,
                                                     const WordPieceFileOptions& options = {});

  std::string to_json() const;  // tokenizer.json

  ~WordPiece() override;
  std::int64_t vocab_size() const override;
  TokenId max_id() const override;
  Encoding encode(std::string_view text, const EncodeOptions& options = {}) const override;
  void append_ids(std::string_view text, std::vector<TokenId>& ids,
                  bool add_special_tokens = false) const override;
  // Words with one space between them; what was normalized away does not come back.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = true) const override;
  std::string decode_bytes(std::span<const TokenId> ids,
                           bool skip_special_tokens = true) const override;
  std::optional<TokenId> token_to_id(std::string_view token) const override;
  std::optional<std::string> id_to_token(TokenId id) const override;
  bool is_special(TokenId id) const override;
  const TokenRoles& roles() const override;
  const SequenceTemplate& sequence_template() const override;
  std::vector<File> files() const override;  // vocab.txt, tokenizer.json
  const std::string& hash() const override;

  struct Impl;  // word_piece.cc
  explicit WordPiece(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
