// Makes tokenizers from SentencePiece's BPE models (tokenizer.model of Llama 1 and 2, Mistral,
// Gemma), as transformers' LlamaTokenizer does. transformers ignores the model's settings for
// normalization, removal of spaces and a missing prefix; this code applies them, as SentencePiece
// does.
#include <algorithm>
#include <array>
#include <numeric>

#include <fmt/format.h>

#include "shoal/runtime/io/base64.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/roles.h"
#include "shoal/train/data/tokenizer/section.h"
#include "shoal/train/data/tokenizer/spiece_proto.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {
namespace {

using nlohmann::json;

constexpr const char* kMarkText = "\u2581";

// Every way to form a piece from two others, ordered by the piece's score (highest first), then by
// id, then by the length of the left part.
std::vector<std::pair<std::string, std::string>> merges_of(const SpieceModel& model,
                                                           const std::string& source) {
  // Trying all cuts of a piece takes time quadratic in its length.
  constexpr std::size_t kUsualLength = 256, kFewLong = std::size_t{1} << 20;
  std::size_t bytes = 0, work = 0;
  for (const auto& piece : model.tokens) {
    bytes += piece->size();
    work += piece->size() * piece->size();
  }
  if (work > kUsualLength * bytes + kFewLong)
    unsupported_tokenizer(source, fmt::format("a SentencePiece model of {} pieces with {} bytes",
                                              model.tokens.size(), bytes));
  StringIds ids;
  for (std::size_t id = 0; id < model.tokens.size(); ++id)
    ids.emplace(*model.tokens[id], static_cast<TokenId>(id));
  std::vector<std::size_t> order(model.tokens.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return model.scores[a] > model.scores[b]; });
  std::vector<std::pair<std::size_t, std::size_t>> cuts;  // the piece, and the position of the cut
  for (const std::size_t id : order) {
    const std::string_view piece = *model.tokens[id];
    for (std::size_t at = 1; at < piece.size(); ++at)
      if (!unicode::is_continuation(piece[at]) && ids.contains(piece.substr(0, at)) &&
          ids.contains(piece.substr(at)))
        cuts.emplace_back(id, at);
  }
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(cuts.size());
  for (const auto& [id, at] : cuts) {
    const std::string& piece = *model.tokens[id];
    merges.emplace_back(piece.substr(0, at), piece.substr(at));
  }
  return merges;
}

bool spells_every_byte(const SpieceModel& model) {
  const auto lacks = [&](unsigned byte) {
    const std::string token = fmt::format("<0x{:02X}>", byte);
    return std::find(model.tokens.begin(), model.tokens.end(), token) == model.tokens.end();
  };
  std::array<unsigned, 256> bytes{};
  std::iota(bytes.begin(), bytes.end(), 0U);
  return std::none_of(bytes.begin(), bytes.end(), lacks);
}

bool is_gemma(const SpieceOptions& options) {
  return options.family == SpieceOptions::Family::gemma;
}

json replace_step(const char* kind, const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

json normalizer_of(const SpieceModel& model, bool gemma) {
  if (gemma) return replace_step("String", " ", kMarkText);
  json steps = json::array();
  if (!model.charsmap.empty())
    steps.push_back({{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(model.charsmap)}});
  if (model.remove_extra_whitespaces)
    for (const auto& [pattern, content] :
         {std::pair("\\A +", ""), std::pair(" +\\z", ""), std::pair(" {2,}", " ")})
      steps.push_back(replace_step("Regex", pattern, content));
  if (steps.empty()) return nullptr;
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

}  // namespace

NamedTokens spiece_special_tokens(const SpieceModel& model, const SpieceOptions& options) {
  NamedTokens tokens;
  const auto piece = [&](std::int64_t id) {
    return AddedToken{.content = *model.tokens[static_cast<std::size_t>(id)]};
  };
  for (const char* role : role_names()) {
    const std::string_view name = role;
    const std::int64_t id = name == "bos_token"   ? model.bos
                            : name == "eos_token" ? model.eos
                            : name == "unk_token" ? model.unknown
                            : name == "pad_token" ? model.pad
                                                  : -1;
    const auto named = std::ranges::find_if(options.special_tokens,
                                            [&](const auto& token) { return token.first == name; });
    if (named != options.special_tokens.end())
      tokens.push_back(*named);
    else if (id >= 0)
      tokens.emplace_back(name, piece(id));
    else if (is_gemma(options) && name == "mask_token")
      tokens.emplace_back(name, AddedToken{.content = "<mask>"});
  }
  return tokens;
}

ComposedDefinition spiece_bpe_definition(SpieceModel model, const std::string& source,
                                         const SpieceOptions& options) {
  ComposedDefinition definition;
  const bool gemma = is_gemma(options);
  const bool prefix = !gemma && options.add_prefix_space.value_or(model.add_dummy_prefix);
  const NamedTokens special = spiece_special_tokens(model, options);
  const auto token_of = [&](std::string_view role) -> const std::string* {
    for (const auto& [name, token] : special)
      if (name == role) return &token.content;
    return nullptr;
  };
  const bool spells_all = spells_every_byte(model);
  definition.bpe = BpeParts{merges_of(model, source),
                            {.unk_token = {},
                             .fuse_unk = true,
                             .ignore_merges = false,
                             .characters = true,
                             .byte_fallback = true}};
  // If the model has tokens for all bytes, no character is unknown. Otherwise unk_token is set,
  // because BpeModel drops unknown characters without it.
  if (!spells_all || gemma) definition.bpe->model.unk_token = *token_of("unk_token");
  definition.normalizer = normalizer_of(model, gemma);
  definition.tokens = std::move(model.tokens);

  // Tokens that the model lacks and that have no stated id get the next ids, in this order.
  std::vector<AddedToken> others;
  for (const auto& [role, token] : special) others.push_back(token);
  others.insert(others.end(), options.extra_tokens.begin(), options.extra_tokens.end());
  add_tokens(definition, model.added);
  add_stated_tokens(definition, with_roles(options.stated_tokens, special), std::move(others),
                    source);

  // The first word after normalization may not start the text.
  const bool always = options.legacy || !definition.normalizer.is_null();
  if (gemma)
    definition.pre_tokenizer = {{"type", "Split"},
                                {"pattern", {{"String", " "}}},
                                {"behavior", "MergedWithPrevious"},
                                {"invert", false}};
  else
    definition.pre_tokenizer = {{"type", "Metaspace"},
                                {"replacement", kMarkText},
                                {"prepend_scheme", !prefix  ? "never"
                                                   : always ? "always"
                                                            : "first"},
                                {"split", false}};
  json steps = {
      replace_step("String", kMarkText, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (prefix) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1U}, {"stop", 0U}});
  definition.decoder = {{"type", "Sequence"}, {"decoders", steps}};

  std::vector<TemplatePart> single, pair;
  const std::string *const bos = token_of("bos_token"), *const eos = token_of("eos_token");
  for (const int type : {0, 1}) {
    const auto put = [&, type](const std::string& token) {
      if (type == 0) single.push_back({token, type});
      pair.push_back({token, type});
    };
    if (options.add_bos_token && bos != nullptr) put(*bos);
    put(type == 0 ? "A" : "B");
    if (options.add_eos_token && eos != nullptr) put(*eos);
  }
  definition.post_processor = template_json(definition, source, single, pair);
  read_composed_parts(source, definition);
  return definition;
}

}  // namespace shoal
