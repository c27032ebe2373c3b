// WordPiece, as in BERT and DistilBERT (Wu et al. 2016). Text is normalized and split at white
// space and punctuation; each word is spelled from left to right with the longest matching tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/bert_normalizer.h"
#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {

// Settings that vocab.txt does not contain. The defaults are bert-base-uncased's.
struct WordPieceFileOptions {
  BertNormalizerOptions normalize;
  std::string unk_token = "[UNK]", cls_token = "[CLS]", sep_token = "[SEP]";
  // Matched in text before anything else. Tokens missing from the vocabulary get the next free ids.
  std::vector<AddedToken> special_tokens = {{.content = "[PAD]"},
                                            {.content = "[UNK]"},
                                            {.content = "[CLS]"},
                                            {.content = "[SEP]"},
                                            {.content = "[MASK]"}};
  StatedTokens stated_tokens = {};
};

// decode() separates words by single spaces; it cannot undo normalization.
class WordPiece final : public TokenizerBase {
 public:
  static std::shared_ptr<const WordPiece> from_vocab(std::string_view vocab_txt,
                                                     const std::string& source,
                                                     const WordPieceFileOptions& options = {});

  struct Impl;  // word_piece.cc
  using TokenizerBase::TokenizerBase;
};

}  // namespace shoal
