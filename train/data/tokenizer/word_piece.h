// WordPiece, as BERT and DistilBERT use it: text is normalized, cut at white space and punctuation,
// and a word becomes the longest tokens that spell it, from left to right (Wu et al. 2016).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/bert_normalizer.h"
#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {

// For vocab.txt, which says nothing of these. The defaults are bert-base-uncased's.
struct WordPieceFileOptions {
  BertNormalizerOptions normalize;
  std::string unk_token = "[UNK]", cls_token = "[CLS]", sep_token = "[SEP]";
  // Found in text before anything else; of those that the vocabulary lacks, each gets the next id.
  std::vector<AddedToken> special_tokens = {{.content = "[PAD]"},
                                            {.content = "[UNK]"},
                                            {.content = "[CLS]"},
                                            {.content = "[SEP]"},
                                            {.content = "[MASK]"}};
  StatedTokens stated_tokens = {};
};

// decode() gives words with one space between them; what was normalized away does not come back.
class WordPiece final : public TokenizerBase {
 public:
  static std::shared_ptr<const WordPiece> from_vocab(std::string_view vocab_txt,
                                                     const std::string& source,
                                                     const WordPieceFileOptions& options = {});

  struct Impl;  // word_piece.cc
  using TokenizerBase::TokenizerBase;
};

}  // namespace shoal
