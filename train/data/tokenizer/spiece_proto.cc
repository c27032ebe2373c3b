#include "shoal/train/data/tokenizer/spiece_proto.h"

#include <cmath>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/protobuf.h"
#include "shoal/train/data/tokenizer/section.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

// Field numbers and enum values of sentencepiece_model.proto.
enum ModelField : std::uint32_t { kPieces = 1, kTrainer = 2, kNormalizer = 3 };
enum PieceField : std::uint32_t { kText = 1, kScore = 2, kKind = 3 };
enum TrainerField : std::uint32_t {
  kModelType = 3,
  kWhiteSpaceAsSuffix = 24,
  kUnknownId = 40,
  kBosId = 41,
  kEosId = 42,
  kPadId = 43
};
enum NormalizerField : std::uint32_t {
  kCharsmap = 2,
  kDummyPrefix = 3,
  kExtraWhiteSpace = 4,
  kEscapeWhiteSpace = 5
};
enum PieceKind : std::uint64_t { kControl = 3, kUserDefined = 4 };

void read_piece(std::string_view bytes, const std::string& source, SpieceModel& model) {
  ProtobufReader piece(bytes, fmt::format("{}: piece {}", source, model.tokens.size()));
  std::string text;
  double score = 0;
  std::uint64_t kind = 1;
  while (piece.next()) {
    if (piece.field() == kText) text = piece.bytes();
    if (piece.field() == kScore) score = static_cast<double>(piece.real());
    if (piece.field() == kKind) kind = piece.integer();
  }
  if (text.empty() || !std::isfinite(score))
    corrupt_tokenizer(source, fmt::format("piece {} is '{}' with the score {}", model.tokens.size(),
                                          text, score));
  if (first_invalid_utf8(text) >= 0)
    corrupt_tokenizer(source, fmt::format("piece {} is not UTF-8", model.tokens.size()));
  if (kind == kControl || kind == kUserDefined)
    model.added.push_back({.content = text, .special = kind == kControl});
  model.tokens.emplace_back(std::move(text));
  model.scores.push_back(score);
}

void read_trainer(ProtobufReader trainer, const std::string& source, SpieceModel& model) {
  std::uint64_t type = 1;
  while (trainer.next()) {
    const auto id = [&] { return static_cast<std::int64_t>(trainer.integer()); };
    if (trainer.field() == kModelType) type = trainer.integer();
    if (trainer.field() == kUnknownId) model.unknown = id();
    if (trainer.field() == kBosId) model.bos = id();
    if (trainer.field() == kEosId) model.eos = id();
    if (trainer.field() == kPadId) model.pad = id();
    if (trainer.field() == kWhiteSpaceAsSuffix && trainer.integer() != 0)
      unsupported_tokenizer(source, "a SentencePiece model with treat_whitespace_as_suffix");
  }
  if (type != 1 && type != 2)
    unsupported_tokenizer(source, fmt::format("a SentencePiece model of the type {}",
                                              type == 3   ? "WORD"
                                              : type == 4 ? "CHAR"
                                                          : std::to_string(type)));
  model.type = type == 1 ? SpieceModel::Type::unigram : SpieceModel::Type::bpe;
}

void read_normalizer_spec(ProtobufReader normalizer, const std::string& source,
                          SpieceModel& model) {
  while (normalizer.next()) {
    if (normalizer.field() == kCharsmap) model.charsmap = normalizer.bytes();
    if (normalizer.field() == kDummyPrefix) model.add_dummy_prefix = normalizer.integer() != 0;
    if (normalizer.field() == kExtraWhiteSpace)
      model.remove_extra_whitespaces = normalizer.integer() != 0;
    if (normalizer.field() == kEscapeWhiteSpace && normalizer.integer() == 0)
      unsupported_tokenizer(source, "a SentencePiece model without escape_whitespaces");
  }
}

}  // namespace

SpieceModel read_spiece_model(std::string_view bytes, const std::string& source) {
  SpieceModel model;
  bool has_trainer = false;
  ProtobufReader file(bytes, source);
  while (file.next()) {
    if (file.field() == kPieces) {
      read_piece(file.bytes(), source, model);
    } else if (file.field() == kTrainer) {
      has_trainer = true;
      read_trainer(ProtobufReader(file.bytes(), source + ": trainer_spec"), source, model);
    } else if (file.field() == kNormalizer) {
      read_normalizer_spec(ProtobufReader(file.bytes(), source + ": normalizer_spec"), source,
                           model);
    }
  }
  if (model.tokens.empty()) corrupt_tokenizer(source, "a SentencePiece model without pieces");
  if (!has_trainer)  // the trainer_spec follows the pieces
    corrupt_tokenizer(source, fmt::format("{} pieces and no trainer_spec: the file is cut short",
                                          model.tokens.size()));
  const auto pieces = static_cast<std::int64_t>(model.tokens.size());
  if (model.unknown < 0 || model.unknown >= pieces)
    corrupt_tokenizer(
        source, fmt::format("unk_id is {}, but the model has {} pieces", model.unknown, pieces));
  for (std::int64_t* id : {&model.bos, &model.eos, &model.pad})
    if (*id >= pieces) *id = -1;
  return model;
}

}  // namespace shoal
