// spiece.model: SentencePiece's ModelProto (sentencepiece_model.proto), as transformers' classes of
// ALBERT, T5 and XLNet make tokenizers of it. Debian's library reads such files too, but keeps the
// normalization to itself, and its own segmentation is not Hugging Face's (docs/architecture.md).
#include <algorithm>
#include <cmath>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/protobuf.h"
#include "shoal/train/data/tokenizer/base64.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/section.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

using nlohmann::json;
using Family = SpieceOptions::Family;

// The numbers of fields and kinds in sentencepiece_model.proto.
enum ModelField : std::uint32_t { kPieces = 1, kTrainer = 2, kNormalizer = 3 };
enum PieceField : std::uint32_t { kText = 1, kScore = 2, kKind = 3 };
enum TrainerField : std::uint32_t { kModelType = 3, kUnknownId = 40 };
enum NormalizerField : std::uint32_t { kCharsmap = 2 };
enum PieceKind : std::uint64_t { kControl = 3, kUserDefined = 4 };
constexpr std::uint64_t kUnigram = 1;

struct SpieceModel {
  std::vector<std::optional<std::string>> tokens;
  std::vector<double> scores;
  std::vector<AddedToken> added;  // control and user-defined pieces: found in text as they stand
  std::uint64_t unknown = 0;
  std::string charsmap;
};

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

SpieceModel read_model(std::string_view bytes, const std::string& source) {
  SpieceModel model;
  std::uint64_t type = kUnigram;
  bool has_trainer = false;
  ProtobufReader file(bytes, source);
  while (file.next()) {
    if (file.field() == kPieces) {
      read_piece(file.bytes(), source, model);
    } else if (file.field() == kTrainer) {
      has_trainer = true;
      ProtobufReader trainer(file.bytes(), source + ": trainer_spec");
      while (trainer.next()) {
        if (trainer.field() == kModelType) type = trainer.integer();
        if (trainer.field() == kUnknownId) model.unknown = trainer.integer();
      }
    } else if (file.field() == kNormalizer) {
      ProtobufReader normalizer(file.bytes(), source + ": normalizer_spec");
      while (normalizer.next())
        if (normalizer.field() == kCharsmap) model.charsmap = normalizer.bytes();
    }
  }
  if (model.tokens.empty()) corrupt_tokenizer(source, "a SentencePiece model without pieces");
  if (!has_trainer)  // it comes after the pieces
    corrupt_tokenizer(source, fmt::format("{} pieces and no trainer_spec: the file is cut short",
                                          model.tokens.size()));
  if (type != kUnigram)
    unsupported_tokenizer(
        source, fmt::format("a SentencePiece model of the type {}", type == 2   ? "BPE"
                                                                    : type == 3 ? "WORD"
                                                                    : type == 4 ? "CHAR"
                                                                                : "unknown"));
  if (model.unknown >= model.tokens.size())
    corrupt_tokenizer(source, fmt::format("unk_id is {}, but the model has {} pieces",
                                          model.unknown, model.tokens.size()));
  return model;
}

// A family's special tokens in the order in which transformers adds them, by role.
using NamedTokens = std::vector<std::pair<std::string, AddedToken>>;

NamedTokens special_tokens(Family family) {
  const auto named = [](const char* role, const char* content) {
    return std::pair<std::string, AddedToken>(role, {.content = content});
  };
  if (family == Family::t5)
    return {named("eos_token", "</s>"), named("unk_token", "<unk>"), named("pad_token", "<pad>")};
  if (family == Family::albert)
    return {named("bos_token", "[CLS]"),  named("eos_token", "[SEP]"), named("unk_token", "<unk>"),
            named("sep_token", "[SEP]"),  named("pad_token", "<pad>"), named("cls_token", "[CLS]"),
            named("mask_token", "[MASK]")};
  NamedTokens xlnet = {named("bos_token", "<s>"),    named("eos_token", "</s>"),
                       named("unk_token", "<unk>"),  named("sep_token", "<sep>"),
                       named("pad_token", "<pad>"),  named("cls_token", "<cls>"),
                       named("mask_token", "<mask>")};
  xlnet.back().second.lstrip = true;
  return xlnet;
}

json normalizer_of(Family family, const SpieceOptions& options, const std::string& charsmap) {
  json steps = json::array();
  if (family != Family::t5) {
    for (const char* quotes : {"``", "''"})
      steps.push_back({{"type", "Replace"}, {"pattern", {{"String", quotes}}}, {"content", "\""}});
    if (family == Family::xlnet || !options.keep_accents)
      for (const char* type : {"NFKD", "StripAccents"}) steps.push_back({{"type", type}});
    if (options.do_lower_case.value_or(family == Family::albert))
      steps.push_back({{"type", "Lowercase"}});
  }
  if (!charsmap.empty())
    steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(charsmap)}});
  if (family == Family::t5) return steps.empty() ? json() : steps[0];
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

struct TemplatePart {
  std::string token;  // "A", "B": the texts
  int type = 0;
};

json template_of(const SentencePieceDefinition& definition, const std::string& source,
                 const std::vector<TemplatePart>& single, const std::vector<TemplatePart>& pair) {
  json tokens = json::object();
  const auto list = [&](const std::vector<TemplatePart>& parts) {
    json items = json::array();
    for (const auto& [name, type] : parts) {
      const bool is_text = name == "A" || name == "B";
      items.push_back({{is_text ? "Sequence" : "SpecialToken", {{"id", name}, {"type_id", type}}}});
      if (is_text) continue;
      const auto found =
          std::find_if(definition.added.begin(), definition.added.end(),
                       [&](const auto& added) { return added.first.content == name; });
      if (found == definition.added.end())
        corrupt_tokenizer(source, fmt::format("the model lacks '{}'", name));
      tokens[name] = {
          {"id", name}, {"ids", json::array({found->second})}, {"tokens", json::array({name})}};
    }
    return items;
  };
  json result = {{"type", "TemplateProcessing"}, {"single", list(single)}, {"pair", list(pair)}};
  result["special_tokens"] = tokens;
  return result;
}

Family family_of(const SpieceModel& model, const std::string& source,
                 const SpieceOptions& options) {
  if (options.family) return *options.family;
  const auto has = [&](const char* token) {
    return std::find(model.tokens.begin(), model.tokens.end(), token) != model.tokens.end();
  };
  if (!has("[CLS]") || !has("[SEP]"))
    throw Error(ErrorCode::unavailable,
                fmt::format("{}: no file says which tokenizer this SentencePiece model is for, and "
                            "it lacks ALBERT's [CLS] and [SEP]",
                            source),
                "name AlbertTokenizer, T5Tokenizer or XLNetTokenizer as tokenizer_class in "
                "tokenizer_config.json, or save a tokenizer.json with transformers");
  return Family::albert;
}

}  // namespace

SentencePieceDefinition parse_spiece_model(std::string_view bytes, const std::string& source,
                                           const SpieceOptions& options) {
  SpieceModel model = read_model(bytes, source);
  const Family family = family_of(model, source, options);
  SentencePieceDefinition definition;
  definition.tokens = std::move(model.tokens);
  definition.scores = std::move(model.scores);
  definition.unknown = static_cast<TokenId>(model.unknown);

  NamedTokens named = special_tokens(family);
  for (const auto& [role, token] : options.special_tokens)
    for (auto& [own_role, own] : named)
      if (own_role == role) own = token;
  std::vector<AddedToken> added;
  for (const auto& [role, token] : named) added.push_back(token);
  // The model's own come last, and what they say of a token's surroundings counts.
  for (const AddedToken& token : model.added) {
    const auto same = std::find_if(added.begin(), added.end(), [&](const AddedToken& other) {
      return other.content == token.content;
    });
    if (same == added.end())
      added.push_back(token);
    else
      *same = {.content = token.content};
  }
  const auto is_extra = [](const AddedToken& token) {
    return token.content.starts_with("<extra_id_");
  };
  if (family == Family::t5 && std::none_of(added.begin(), added.end(), is_extra))
    for (int i = options.extra_ids - 1; i >= 0; --i) {  // T5 counts them backwards
      added.push_back({.content = fmt::format("<extra_id_{}>", i)});
      definition.tokens.emplace_back(added.back().content);
      definition.scores.push_back(0);
    }
  add_tokens(definition, added);

  definition.normalizer = normalizer_of(family, options, model.charsmap);
  const json metaspace = {{"type", "Metaspace"},
                          {"replacement", Metaspace{}.replacement},
                          {"prepend_scheme", "always"},
                          {"split", true}};
  definition.pre_tokenizer = {{"type", "Sequence"},
                              {"pretokenizers", {{{"type", "WhitespaceSplit"}}, metaspace}}};
  definition.decoder = metaspace;
  const auto text_of = [&](const char* role) {
    return std::find_if(named.begin(), named.end(), [&](const auto& n) { return n.first == role; })
        ->second.content;
  };
  if (family == Family::albert)
    definition.post_processor = template_of(definition, source, {{"[CLS]"}, {"A"}, {"[SEP]"}},
                                            {{"[CLS]"}, {"A"}, {"[SEP]"}, {"B", 1}, {"[SEP]", 1}});
  else if (family == Family::t5)
    definition.post_processor =
        template_of(definition, source, {{"A"}, {"</s>"}}, {{"A"}, {"</s>"}, {"B"}, {"</s>"}});
  else
    definition.post_processor =
        template_of(definition, source, {{"A"}, {text_of("sep_token")}, {text_of("cls_token"), 2}},
                    {{"A"},
                     {text_of("sep_token")},
                     {"B", 1},
                     {text_of("sep_token"), 1},
                     {text_of("cls_token"), 2}});
  read_sentence_piece_parts(source, definition);
  return definition;
}

}  // namespace shoal
