// Reads SentencePiece's ModelProto (sentencepiece_model.proto) from a spiece.model or
// tokenizer.model. Debian's library also reads it, but hides the normalization, and its
// segmentation differs from Hugging Face's (docs/internals/architecture.md). Internal to this
// folder.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/composed_tokenizer.h"
#include "shoal/train/data/tokenizer/roles.h"

namespace shoal {

struct ComposedDefinition;

struct SpieceModel {
  enum class Type : std::uint8_t { unigram = 1, bpe = 2 };
  Type type = Type::unigram;
  std::vector<std::optional<std::string>> tokens;
  std::vector<double> scores;
  std::vector<AddedToken> added;  // control and user-defined pieces: matched verbatim in text
  std::int64_t unknown = 0, bos = 1, eos = 2, pad = -1;  // ids; -1: none
  std::string charsmap;                                  // empty: no replacements
  bool add_dummy_prefix = true, remove_extra_whitespaces = true;
};

// corrupt_data or unavailable, with `source` prefixed.
SpieceModel read_spiece_model(std::string_view bytes, const std::string& source);

// Takes a model of either kind; calls spiece_bpe_definition() for BPE models.
ComposedDefinition spiece_definition(SpieceModel model, const std::string& source,
                                     const SpieceOptions& options);
ComposedDefinition spiece_bpe_definition(SpieceModel model, const std::string& source,
                                         const SpieceOptions& options);
// BPE: the options' tokens, completed by the model's own for other roles.
NamedTokens spiece_special_tokens(const SpieceModel& model, const SpieceOptions& options);
// Unigram: the options' tokens, completed by the family's for other roles.
NamedTokens unigram_special_tokens(const SpieceModel& model, const std::string& source,
                                   const SpieceOptions& options);

}  // namespace shoal
