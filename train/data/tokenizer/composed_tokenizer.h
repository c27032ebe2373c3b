// Hugging Face's composition of normalizers, pre-tokenizers, a model and decoders, in lists of any
// length. It covers the byte-level BPE of Qwen, DeepSeek, SmolLM or Falcon, and SentencePiece (Kudo
// and Richardson 2018). SentencePiece normalizes text and replaces spaces by marks. Its unigram
// models (ALBERT, T5, XLNet) spell each word with the tokens that have the highest total score. Its
// BPE models (Llama 1 and 2, Mistral, Gemma) merge the characters of the whole text and spell
// characters without a token as bytes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {

// Settings that spiece.model and tokenizer.model do not contain; transformers' class of the family
// determines them.
struct SpieceOptions {
  enum class Family { albert, t5, xlnet, gemma };
  // Absent: Llama's for a BPE model, ALBERT's for a unigram model with [CLS] and [SEP]; other
  // unigram models are rejected.
  std::optional<Family> family;
  std::optional<bool> do_lower_case;  // ALBERT only
  bool keep_accents = false;          // ALBERT only
  int extra_ids = 100;                // T5 only: number of tokens <extra_id_0> ...
  // Special tokens that differ from the family's, by role ("mask_token").
  std::vector<std::pair<std::string, AddedToken>> special_tokens;
  // BPE models only. bos and eos are added around texts if the model has them; add_prefix_space
  // puts a mark before a text; `legacy` also puts one after special tokens.
  bool add_bos_token = true, add_eos_token = false;
  std::optional<bool> add_prefix_space = {};  // absent: as in the model
  bool legacy = false;
  StatedTokens stated_tokens = {};
  std::vector<AddedToken> extra_tokens = {};  // without id or role; added last
};

class ComposedTokenizer final : public TokenizerBase {
 public:
  // From the bytes of a unigram or BPE spiece.model or tokenizer.model. The result matches
  // transformers (docs/guides/data.md lists the exceptions).
  static std::shared_ptr<const ComposedTokenizer> from_spiece(std::string_view model,
                                                              const std::string& source,
                                                              const SpieceOptions& options = {});

  struct Impl;  // composed_tokenizer.cc
  using TokenizerBase::TokenizerBase;
};

}  // namespace shoal
