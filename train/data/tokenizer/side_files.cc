#include "shoal/train/data/tokenizer/side_files.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/data/tokenizer/section.h"

namespace shoal {
namespace {

using nlohmann::json;

constexpr const char *kFurther = "additional_special_tokens", *kExtra = "extra_special_tokens";

// One side file; an empty object if it is missing.
struct File {
  explicit File(const std::filesystem::path& path_in)
      : path(path_in.string()),
        json(path_exists(path) ? read_json_file(path) : nlohmann::json::object()),
        fields(json, path) {}
  std::string path;
  nlohmann::json json;
  JsonFields fields;
};

// A token given as text, or as an object with flags. As in transformers, a token is matched in
// normalized text unless it is special or `normalized` overrides that.
AddedToken token_of(const json& value, bool special, const std::string& where) {
  AddedToken token;
  token.special = special;
  if (value.is_string()) {
    token.content = value.get<std::string>();
  } else {
    const JsonFields fields(value, where);
    if (!fields.has("content")) fields.fail("has no content");
    fields.text("content", token.content);
    fields.boolean("single_word", token.single_word);
    fields.boolean("lstrip", token.lstrip);
    fields.boolean("rstrip", token.rstrip);
    fields.boolean("special", token.special);
    token.normalized = !token.special;
    fields.boolean("normalized", token.normalized);
  }
  if (token.content.empty()) corrupt_tokenizer(where, "a special token has no content");
  return token;
}

// A token with a role is special, even if its `special` flag is false.
AddedToken role_token(const json& value, const std::string& where) {
  AddedToken token = token_of(value, true, where);
  token.special = true;
  return token;
}

TokenId stated_id(std::string_view text, const std::string& where) {
  TokenId id = -1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (problem != std::errc() || end != text.data() + text.size() || id < 0)
    corrupt_tokenizer(where, fmt::format("'{}' is not a token id", text));
  return id;
}

void read_roles(const File& file, std::map<std::string, AddedToken>& roles) {
  for (const char* role : role_names())
    if (const json* value = file.fields.find(role); value != nullptr)
      roles.insert_or_assign(role, role_token(*value, fmt::format("{}, {}", file.path, role)));
}

// Reads extra tokens. First come "..._token" entries that are texts without a known role, then the
// lists `keys` or objects of tokens by name.
void read_extra(const File& file, std::initializer_list<const char*> keys,
                std::vector<AddedToken>& extra) {
  std::unordered_set<std::string> known;
  for (const AddedToken& token : extra) known.insert(token.content);
  const auto add = [&](const json& value, std::string_view key) {
    AddedToken token = role_token(value, fmt::format("{}, {}", file.path, key));
    if (known.insert(token.content).second) extra.push_back(std::move(token));
  };
  for (const auto& [key, value] : file.json.items())
    if (key.ends_with("_token") && value.is_string() &&
        std::ranges::none_of(role_names(), [&](const char* role) { return key == role; }))
      add(value, key);
  for (const char* key : keys) {
    const json* const list = file.fields.find(key);
    if (list == nullptr) continue;
    if (!list->is_array() && !list->is_object()) file.fields.wrong(key, *list, "a list of tokens");
    for (const json& value : *list) add(value, key);
  }
}

StatedTokens in_order(const std::map<TokenId, AddedToken>& by_id) {
  StatedTokens tokens;
  for (const auto& [id, token] : by_id) tokens.emplace_back(token, id);
  return tokens;
}

// added_tokens_decoder: {"5": {"content": "<x>", ...}}.
void read_decoder(const File& config, SideFiles& files) {
  const json* const tokens = config.fields.find("added_tokens_decoder");
  if (tokens == nullptr) return;
  const std::string where = config.path + ", added_tokens_decoder";
  if (!tokens->is_object()) corrupt_tokenizer(where, "not an object of id: token");
  std::map<TokenId, AddedToken> by_id;
  for (const auto& [key, value] : tokens->items())
    if (!value.is_null()) by_id[stated_id(key, where)] = token_of(value, false, where);
  files.stated = in_order(by_id);
}

// added_tokens.json: {"<x>": 5}. A token is special if it has a role or is an extra one.
void read_added(const File& file, const std::map<std::string, AddedToken>& roles,
                SideFiles& files) {
  std::set<std::string> special;
  for (const auto& [role, token] : roles) special.insert(token.content);
  for (const AddedToken& token : files.extra) special.insert(token.content);
  std::map<TokenId, AddedToken> by_id;
  for (const auto& [content, value] : file.json.items()) {
    if (value.is_null()) continue;
    if (!value.is_number_integer())
      corrupt_tokenizer(file.path, fmt::format("the id of '{}' is {}", content, value.dump()));
    const TokenId id = stated_id(value.dump(), file.path);
    const bool is_special = special.contains(content);
    if (const auto [place, is_new] = by_id.try_emplace(
            id, AddedToken{.content = content, .normalized = !is_special, .special = is_special});
        !is_new)
      corrupt_tokenizer(file.path, fmt::format("the tokens '{}' and '{}' both have the id {}",
                                               place->second.content, content, id));
  }
  files.stated = in_order(by_id);
}

void read_options(const JsonFields& fields, SideFiles& files) {
  const auto optional = [&](const char* key, std::optional<bool>& value) {
    bool given = false;
    fields.boolean(key, given);
    if (fields.has(key)) value = given;
  };
  fields.boolean("add_prefix_space", files.add_prefix_space);
  fields.boolean("do_lower_case", files.do_lower_case);
  fields.boolean("tokenize_chinese_chars", files.tokenize_chinese_chars);
  optional("strip_accents", files.strip_accents);
  optional("do_lower_case", files.spiece.do_lower_case);
  fields.boolean("keep_accents", files.spiece.keep_accents);
  fields.integer("extra_ids", files.spiece.extra_ids);
  optional("add_bos_token", files.add_bos_token);
  optional("add_eos_token", files.add_eos_token);
  fields.boolean("legacy", files.spiece.legacy);
  optional("add_prefix_space", files.spiece.add_prefix_space);
  fields.text("tokenizer_class", files.tokenizer_class);
}

}  // namespace

SideFiles read_side_files(const std::filesystem::path& directory) {
  SideFiles files;
  const File config(directory / "tokenizer_config.json"),
      map(directory / "special_tokens_map.json");
  read_options(map.fields, files);
  read_options(config.fields, files);
  const bool has_ids = config.fields.has("added_tokens_decoder");
  std::map<std::string, AddedToken> roles;
  read_roles(config, roles);
  // Extra tokens are listed under kFurther or, by transformers 5, under kExtra. In
  // special_tokens_map.json, kFurther is read after added_tokens.json: as in transformers, this
  // list does not make a token special if added_tokens.json gives its id.
  read_extra(config, {kFurther, kExtra}, files.extra);
  files.stated_flags_win = has_ids;
  if (has_ids) {
    read_decoder(config, files);
  } else {
    read_roles(map, roles);
    read_extra(map, {kExtra}, files.extra);
    read_added(File(directory / "added_tokens.json"), roles, files);
    read_extra(map, {kFurther}, files.extra);
  }
  for (const char* role : role_names())
    if (const auto found = roles.find(role); found != roles.end())
      files.named.emplace_back(found->first, found->second);
  return files;
}

std::vector<AddedToken> tokens_without_ids(const SideFiles& files, const NamedTokens& named) {
  std::vector<AddedToken> tokens;
  for (const auto& [role, token] : named) tokens.push_back(token);
  tokens.insert(tokens.end(), files.extra.begin(), files.extra.end());
  return tokens;
}

void add_side_tokens(TokenizerDefinition& definition, const SideFiles& files,
                     const std::string& source) {
  SideFiles missing = files;
  std::unordered_map<std::string_view, std::pair<AddedToken, TokenId>*> added;
  for (auto& token : definition.added) added.emplace(token.first.content, &token);
  const auto is_added = [&](const AddedToken& token) { return added.contains(token.content); };
  for (const auto& [role, token] : files.named)
    if (is_added(token)) added.at(token.content)->first.special = true;
  if (files.stated_flags_win)
    for (const auto& [token, id] : with_roles(files.stated, files.named))
      if (is_added(token)) added.at(token.content)->first = token;
  std::erase_if(missing.stated, [&](const auto& token) { return is_added(token.first); });
  std::erase_if(missing.named, [&](const auto& token) { return is_added(token.second); });
  std::erase_if(missing.extra, is_added);
  if (!missing.names_tokens()) return;
  std::unordered_map<std::string_view, TokenId*> stated;
  for (auto& [token, id] : missing.stated) stated.emplace(token.content, &id);
  for (std::size_t id = 0; id < definition.tokens.size() && !stated.empty(); ++id)
    if (definition.tokens[id])
      if (const auto found = stated.find(*definition.tokens[id]); found != stated.end())
        *found->second = static_cast<TokenId>(id);
  std::ranges::stable_sort(missing.stated, {}, &StatedTokens::value_type::second);
  add_stated_tokens(definition, with_roles(missing.stated, files.named),
                    tokens_without_ids(missing, missing.named), source);
}

}  // namespace shoal
