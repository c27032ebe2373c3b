// A spiece.model or tokenizer.model: SentencePiece's ModelProto (sentencepiece_model.proto).
// Debian's library reads such files too, but keeps the normalization to itself, and its own
// segmentation is not Hugging Face's (docs/architecture.md). Internal to this room.
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
  std::vector<AddedToken> added;  // control and user-defined pieces: found in text as they stand
  std::int64_t unknown = 0, bos = 1, eos = 2, pad = -1;  // ids; -1: none
  std::string charsmap;                                  // empty: characters stay as they are
  bool add_dummy_prefix = true, remove_extra_whitespaces = true;
};

// corrupt_data or unavailable, with `source` in front.
SpieceModel read_spiece_model(std::string_view bytes, const std::string& source);

// spiece_model.cc; spiece_bpe.cc for a model of that type.
ComposedDefinition spiece_definition(SpieceModel model, const std::string& source,
                                     const SpieceOptions& options);
ComposedDefinition spiece_bpe_definition(SpieceModel model, const std::string& source,
                                         const SpieceOptions& options);
// Of a BPE model: its own that its trainer gave a role, or the options'.
NamedTokens spiece_special_tokens(const SpieceModel& model, const SpieceOptions& options);
// Of a unigram model: the options', and its family's for the roles that they do not name.
NamedTokens unigram_special_tokens(const SpieceModel& model, const std::string& source,
                                   const SpieceOptions& options);

}  // namespace shoal
