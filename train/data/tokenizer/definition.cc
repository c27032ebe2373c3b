#include "shoal/train/data/tokenizer/definition.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/train/data/tokenizer/section.h"

namespace shoal {
namespace {

using nlohmann::json;

using Piece = SequenceTemplate::Piece;

// Limits the template, because it can name a long list of ids many times.
constexpr std::size_t kMostPieces = 1'024;

// One list of a TemplateProcessing: {"Sequence": {"id": "A", "type_id": 0}} or a SpecialToken.
std::vector<Piece> template_pieces(Section& post, const char* key) {
  std::vector<Piece> pieces;
  const json& items = post.need(key);
  if (!items.is_array()) post.wrong(key, "an array");
  const std::string where = fmt::format("{}.{}", post.where(), key);
  const auto type_of = [](Section& item) { return item.find("type_id") ? item.id("type_id") : 0; };
  for (const json& value : items) {
    Section item(value, where, post.source());
    if (const json* special = item.find("SpecialToken")) {
      Section token(*special, where, post.source());
      const TokenId type = type_of(token);
      const std::string name = token.text("id");
      token.nothing_else();
      const json& all = post.need("special_tokens");
      if (!all.is_object() || !all.contains(name))
        corrupt_tokenizer(post.source(),
                          fmt::format("{}.special_tokens lacks '{}'", post.where(), name));
      Section ids(all[name], post.where() + ".special_tokens." + name, post.source());
      for (const json& id : ids.need("ids")) {
        if (pieces.size() == kMostPieces)
          unsupported_tokenizer(post.source(),
                                fmt::format("{} of more than {} tokens", where, kMostPieces));
        pieces.push_back({.id = ids.id_of(id, ids.where() + ".ids"), .type = type});
      }
    } else {
      Section text(item.need("Sequence"), where, post.source());
      const std::string name = text.text("id");
      if (name != "A" && name != "B") text.wrong("id", "A or B");
      pieces.push_back({.text = name == "B" ? 1 : 0, .type = type_of(text)});
      text.nothing_else();
    }
    item.find("Sequence");
    item.nothing_else();
  }
  return pieces;
}

SequenceTemplate read_template(Section& post) {
  SequenceTemplate sequence;
  sequence.single = template_pieces(post, "single");
  if (post.find("pair") != nullptr) sequence.pair = template_pieces(post, "pair");
  post.need("special_tokens");
  const auto times = [](const std::vector<Piece>& pieces, int text) {
    return std::count_if(pieces.begin(), pieces.end(),
                         [text](const Piece& piece) { return piece.text == text; });
  };
  if (times(sequence.single, 0) != 1 || times(sequence.single, 1) != 0)
    unsupported_tokenizer(post.source(), "a TemplateProcessing.single other than one sequence A");
  if (times(sequence.pair, 0) != 1 || times(sequence.pair, 1) != 1)
    unsupported_tokenizer(post.source(), "a TemplateProcessing.pair other than one A and one B");
  return sequence;
}

}  // namespace

void read_post_processor(const json& value, const std::string& where, const std::string& source,
                         TokenizerDefinition& definition) {
  Section post(value, where, source);
  const std::string type = post.text("type");
  const auto named_id = [&](const char* key) {
    const json& pair = post.need(key);
    if (!pair.is_array() || pair.size() != 2) post.wrong(key, "[token, id]");
    return post.id_of(pair[1], fmt::format("{}.{}", where, key));
  };
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    const bool prefix = post.boolean("add_prefix_space");
    if (post.boolean("trim_offsets")) {
      definition.trim_offsets = true;
      definition.trim_prefix_space = prefix;
    }
    post.find("use_regex");
  }
  std::optional<SequenceTemplate> sequence;
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    const TokenId cls = named_id("cls"), sep = named_id("sep");
    sequence = type == "BertProcessing" ? SequenceTemplate::bert(cls, sep)
                                        : SequenceTemplate::roberta(cls, sep);
  } else if (type == "TemplateProcessing") {
    sequence = read_template(post);
  } else if (type == "Sequence") {
    const json& list = post.need("processors");
    if (!list.is_array()) post.wrong("processors", "an array");
    for (std::size_t i = 0; i < list.size(); ++i)
      read_post_processor(list[i], fmt::format("{}.processors[{}]", where, i), source, definition);
  } else if (type != "ByteLevel") {
    unsupported_tokenizer(source, fmt::format("the post-processor '{}'", type));
  }
  if (sequence) {
    if (definition.sequence.adds_tokens())
      unsupported_tokenizer(source, fmt::format("{} after another that adds tokens", where));
    definition.sequence = *std::move(sequence);
  }
  post.nothing_else();
}

json template_json(const TokenizerDefinition& definition, const std::string& source,
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

void check_template(const SequenceTemplate& sequence, std::size_t ids, const std::string& source) {
  for (const auto* pieces : {&sequence.single, &sequence.pair})
    for (const Piece& piece : *pieces)
      if (piece.text == SequenceTemplate::kSpecial && static_cast<std::size_t>(piece.id) >= ids)
        throw_error(ErrorCode::corrupt_data,
                    "{}: the post-processor adds the id {}, but the highest id is {}", source,
                    piece.id, ids - 1);
}

void check_dense(TokenId highest, std::size_t tokens, const std::string& source) {
  constexpr std::size_t kGaps = 65'536;  // allowed in addition to one gap per token
  if (const std::size_t most = 2 * tokens + kGaps;
      highest >= 0 && static_cast<std::size_t>(highest) >= most)
    corrupt_tokenizer(source, fmt::format("the highest id is {}, for {} tokens; it may be up to {}",
                                          highest, tokens, most - 1));
}

void read_vocab(const json& vocab, const std::string& source, TokenizerDefinition& definition) {
  if (!vocab.is_object()) corrupt_tokenizer(source, "the vocabulary is not an object of token: id");
  auto& tokens = definition.tokens;
  const Section ids(vocab, "the vocabulary", source);
  const auto id_in = [](const Section& section, const std::string& token, const json& value) {
    return section.id_of(value, fmt::format("the id of '{}'", shortened(token, 80)));
  };
  TokenId highest = -1;
  for (const auto& [token, value] : vocab.items())
    highest = std::max(highest, id_in(ids, token, value));
  check_dense(highest, vocab.size(), source);
  tokens.resize(static_cast<std::size_t>(highest) + 1);
  for (const auto& [token, value] : vocab.items()) {
    const auto id = static_cast<std::size_t>(id_in(ids, token, value));
    if (tokens[id])
      corrupt_tokenizer(source, fmt::format("the tokens '{}' and '{}' both have the id {}",
                                            *tokens[id], token, id));
    tokens[id] = token;
  }
}

void read_added_tokens(const json* list, const std::string& source,
                       TokenizerDefinition& definition) {
  if (list == nullptr) return;
  if (!list->is_array()) corrupt_tokenizer(source, "added_tokens is not an array");
  std::vector<AddedToken> tokens;
  std::vector<TokenId> ids;
  for (const json& item : *list) {
    Section token(item, fmt::format("added_tokens[{}]", tokens.size()), source);
    ids.push_back(token.id("id"));
    tokens.push_back({.content = token.text("content"),
                      .single_word = token.boolean("single_word"),
                      .lstrip = token.boolean("lstrip"),
                      .rstrip = token.boolean("rstrip"),
                      .normalized = token.boolean("normalized"),
                      .special = token.boolean("special")});
    token.nothing_else();
    if (tokens.back().content.empty())
      corrupt_tokenizer(source, fmt::format("added_tokens[{}] has no content", tokens.size() - 1));
  }
  add_tokens(definition, tokens);
  std::vector<std::pair<std::string_view, TokenId>> claimed;
  for (std::size_t i = 0; i < tokens.size(); ++i) claimed.emplace_back(tokens[i].content, ids[i]);
  check_added_ids(definition, claimed, source);
}

void check_added_ids(const TokenizerDefinition& definition,
                     const std::vector<std::pair<std::string_view, TokenId>>& claimed,
                     const std::string& source) {
  std::unordered_map<std::string_view, TokenId> places;
  for (const auto& [token, id] : definition.added) places.emplace(token.content, id);
  for (const auto& [token, id] : claimed)
    if (const auto found = places.find(token); found != places.end() && found->second != id)
      corrupt_tokenizer(
          source, fmt::format("the added token '{}' claims the id {}, but its place is {}", token,
                              id, found->second));
}

namespace {

void add_at_ids(TokenizerDefinition& definition, const StatedTokens& tokens,
                const std::string& source) {
  std::unordered_map<std::string, TokenId> ids;
  std::map<TokenId, AddedToken> added;
  for (std::size_t id = 0; id < definition.tokens.size(); ++id)
    if (definition.tokens[id]) ids.emplace(*definition.tokens[id], static_cast<TokenId>(id));
  for (const auto& [token, id] : definition.added) {
    ids.emplace(token.content, id);
    added.emplace(id, token);
  }
  check_dense(tokens.back().second, ids.size() + tokens.size(), source);
  for (const auto& [token, id] : tokens) {
    const auto at = static_cast<std::size_t>(id);
    const auto [place, is_new] = ids.emplace(token.content, id);
    if (!is_new && place->second != id)
      corrupt_tokenizer(source, fmt::format("the token '{}' has the id {} in one file and {} in "
                                            "another",
                                            token.content, place->second, id));
    const auto other = added.find(id);
    const std::string* const held = other != added.end() ? &other->second.content
                                    : at < definition.tokens.size() && definition.tokens[at]
                                        ? &*definition.tokens[at]
                                        : nullptr;
    if (held != nullptr && *held != token.content)
      corrupt_tokenizer(source, fmt::format("the tokens '{}' and '{}' both have the id {}", *held,
                                            token.content, id));
    added.insert_or_assign(id, token);
    if (held != nullptr || at == ids.size() - 1) continue;
    // Hugging Face's add_tokens would assign another id. Put the token into the vocabulary, so that
    // saved files keep this id.
    if (at >= definition.tokens.size()) definition.tokens.resize(at + 1);
    definition.tokens[at] = token.content;
  }
  definition.added.clear();
  for (auto& [id, token] : added) definition.added.emplace_back(std::move(token), id);
}

}  // namespace

void add_stated_tokens(TokenizerDefinition& definition, const StatedTokens& stated,
                       std::vector<AddedToken> others, const std::string& source) {
  if (!stated.empty()) add_at_ids(definition, stated, source);
  std::unordered_set<std::string_view> done;
  for (const auto& [token, id] : stated) done.insert(token.content);
  std::erase_if(others, [&](const AddedToken& token) { return done.contains(token.content); });
  add_tokens(definition, others);
}

void add_tokens(TokenizerDefinition& definition, const std::vector<AddedToken>& tokens) {
  std::unordered_map<std::string, TokenId> ids;
  TokenId vocabulary = 0;
  for (std::size_t id = 0; id < definition.tokens.size(); ++id)
    if (definition.tokens[id]) {
      ids.emplace(*definition.tokens[id], static_cast<TokenId>(id));
      ++vocabulary;
    }
  TokenId next = vocabulary;
  std::unordered_map<TokenId, std::size_t> added;  // id -> index in definition.added
  for (std::size_t i = 0; i < definition.added.size(); ++i) {
    const auto& [token, id] = definition.added[i];
    ids.emplace(token.content, id);
    added.emplace(id, i);
    next = std::max(next, id + 1);
  }
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    const auto [place, is_new] = ids.emplace(token.content, next);
    if (is_new) ++next;
    const TokenId id = place->second;
    if (const auto [known, is_first] = added.emplace(id, definition.added.size()); is_first)
      definition.added.emplace_back(token, id);
    else
      definition.added[known->second].first = token;
  }
  std::sort(definition.added.begin(), definition.added.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
}

}  // namespace shoal
