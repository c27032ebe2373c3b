// SentencePiece's unigram tokenizers (Kudo and Richardson 2018), as ALBERT, T5 and XLNet use them
// through Hugging Face: text is normalized, cut at white space, each word gets a mark in front, and
// the tokens that spell it with the highest sum of scores are taken.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {

// For spiece.model, which says nothing of these: what transformers' class of the family does.
struct SpieceOptions {
  enum class Family { albert, t5, xlnet };
  // Absent: ALBERT if the model has [CLS] and [SEP]; else it is refused.
  std::optional<Family> family;
  std::optional<bool> do_lower_case;  // absent: ALBERT's do, XLNet's do not; T5's never
  bool keep_accents = false;          // of ALBERT's
  int extra_ids = 100;                // of T5's: <extra_id_0> ...
  // Of special tokens that are not as the family has them: by role ("mask_token").
  std::vector<std::pair<std::string, AddedToken>> special_tokens;
};

class SentencePiece final : public TokenizerBase {
 public:
  // As ByteLevelBpe's. Read are: the model Unigram; normalizers Replace (a text, or a character
  // repeated: " {2,}"), NFD, NFKD, StripAccents, Lowercase, Precompiled, Strip, Prepend; the
  // pre-tokenizers WhitespaceSplit and Metaspace; decoders Metaspace, Replace, ByteFallback, Fuse,
  // Strip.
  static std::shared_ptr<const SentencePiece> from_json(std::string_view json,
                                                        const std::string& source);
  // From the bytes of a spiece.model of the unigram type.
  static std::shared_ptr<const SentencePiece> from_spiece(std::string_view model,
                                                          const std::string& source,
                                                          const SpieceOptions& options = {});

  struct Impl;  // sentence_piece.cc
  using TokenizerBase::TokenizerBase;
};

}  // namespace shoal
