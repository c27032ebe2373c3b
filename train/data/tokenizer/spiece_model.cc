// Makes tokenizers from SentencePiece's unigram models, as transformers' ALBERT, T5 and XLNet
// classes do.
#include <algorithm>
#include <unordered_map>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/base64.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/roles.h"
#include "shoal/train/data/tokenizer/section.h"
#include "shoal/train/data/tokenizer/spiece_proto.h"

namespace shoal {
namespace {

using nlohmann::json;
using Family = SpieceOptions::Family;

constexpr int kMostExtraIds = 10'000;  // limit of SpieceOptions::extra_ids; T5 has 100

// A family's tokens with roles, in the order in which transformers adds them.
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

NamedTokens unigram_special_tokens(const SpieceModel& model, const std::string& source,
                                   const SpieceOptions& options) {
  return named_or(options.special_tokens, special_tokens(family_of(model, source, options)));
}

ComposedDefinition spiece_definition(SpieceModel model, const std::string& source,
                                     const SpieceOptions& options) {
  if (model.type == SpieceModel::Type::bpe) {
    if (options.family && *options.family != Family::gemma)
      unsupported_tokenizer(source,
                            "a SentencePiece model of the type BPE for ALBERT, T5 or XLNet");
    return spiece_bpe_definition(std::move(model), source, options);
  }
  const Family family = family_of(model, source, options);
  ComposedDefinition definition;
  definition.tokens = std::move(model.tokens);
  definition.scores = std::move(model.scores);
  definition.unknown = static_cast<TokenId>(model.unknown);

  const NamedTokens named = named_or(options.special_tokens, special_tokens(family));
  std::vector<AddedToken> added;
  for (const auto& [role, token] : named) added.push_back(token);
  // The model's own tokens come last, and their flags take precedence.
  std::unordered_map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < added.size(); ++i) places.emplace(added[i].content, i);
  for (const AddedToken& token : model.added) {
    if (const auto [same, is_new] = places.emplace(token.content, added.size()); is_new)
      added.push_back(token);
    else
      added[same->second] = {.content = token.content};
  }
  if (options.extra_ids < 0 || options.extra_ids > kMostExtraIds)
    corrupt_tokenizer(source, fmt::format("extra_ids beside it is {}; 0 to {} are possible",
                                          options.extra_ids, kMostExtraIds));
  const auto is_extra = [](const AddedToken& token) {
    return token.content.starts_with("<extra_id_");
  };
  if (family == Family::t5 && std::none_of(added.begin(), added.end(), is_extra))
    for (int i = options.extra_ids - 1; i >= 0; --i) {  // T5 numbers them downwards
      added.push_back({.content = fmt::format("<extra_id_{}>", i)});
      definition.tokens.emplace_back(added.back().content);
      definition.scores.push_back(0);
    }
  added.insert(added.end(), options.extra_tokens.begin(), options.extra_tokens.end());
  add_stated_tokens(definition, with_roles(options.stated_tokens, named), std::move(added), source);
  if (definition.tokens.size() != definition.scores.size())
    unsupported_tokenizer(source,
                          fmt::format("a unigram model with {} tokens and a token of the "
                                      "id {} (the ids between are of no token)",
                                      definition.scores.size(), definition.tokens.size() - 1));

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
    definition.post_processor =
        template_json(definition, source, {{"[CLS]"}, {"A"}, {"[SEP]"}},
                      {{"[CLS]"}, {"A"}, {"[SEP]"}, {"B", 1}, {"[SEP]", 1}});
  else if (family == Family::t5)
    definition.post_processor =
        template_json(definition, source, {{"A"}, {"</s>"}}, {{"A"}, {"</s>"}, {"B"}, {"</s>"}});
  else
    definition.post_processor = template_json(
        definition, source, {{"A"}, {text_of("sep_token")}, {text_of("cls_token"), 2}},
        {{"A"},
         {text_of("sep_token")},
         {"B", 1},
         {text_of("sep_token"), 1},
         {text_of("cls_token"), 2}});
  read_composed_parts(source, definition);
  return definition;
}

}  // namespace shoal
