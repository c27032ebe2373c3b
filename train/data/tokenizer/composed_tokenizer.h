// Hugging Face's composition of normalizers, pre-tokenizers, a model and decoders, each a list of
// any length: the byte-level BPE of Qwen, DeepSeek, SmolLM or Falcon, and SentencePiece's
// tokenizers (Kudo and Richardson 2018). Of the latter text is normalized and spaces become marks.
// Then the unigram ones of ALBERT, T5 and XLNet take, word by word, the tokens that spell it with
// the highest sum of scores; the BPE ones of Llama 1 and 2, Mistral and Gemma merge the characters
// of all of it, and write those that have no token as bytes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {

// For spiece.model and tokenizer.model, which say nothing of these: what transformers' class of the
// family does.
struct SpieceOptions {
  enum class Family { albert, t5, xlnet, gemma };
  // Absent: Llama's of a BPE model; of a unigram model ALBERT's if it has [CLS] and [SEP], else it
  // is refused.
  std::optional<Family> family;
  std::optional<bool> do_lower_case;  // absent: ALBERT's do, XLNet's do not; T5's never
  bool keep_accents = false;          // of ALBERT's
  int extra_ids = 100;                // of T5's: <extra_id_0> ...
  // Of special tokens that are not as the family has them: by role ("mask_token").
  std::vector<std::pair<std::string, AddedToken>> special_tokens;
  // Of a BPE model. Around texts, where the model has such tokens; a mark in front of a text; in
  // front of what stands behind special tokens, too.
  bool add_bos_token = true, add_eos_token = false;
  std::optional<bool> add_prefix_space = {};  // absent: as the model says
  bool legacy = false;
  StatedTokens stated_tokens = {};
  std::vector<AddedToken> extra_tokens = {};  // without id or role; they come last
};

class ComposedTokenizer final : public TokenizerBase {
 public:
  // From the bytes of a spiece.model or tokenizer.model, of the unigram or BPE type. What becomes
  // of it is what transformers makes of it (docs/data.md says where not).
  static std::shared_ptr<const ComposedTokenizer> from_spiece(std::string_view model,
                                                              const std::string& source,
                                                              const SpieceOptions& options = {});

  struct Impl;  // composed_tokenizer.cc
  using TokenizerBase::TokenizerBase;
};

}  // namespace shoal
