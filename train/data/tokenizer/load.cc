#include "shoal/train/data/tokenizer/load.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/base64.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/make_tokenizer.h"
#include "shoal/train/data/tokenizer/spiece_proto.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::array<const char*, 7> kRoles = {"bos_token",  "eos_token", "pad_token", "unk_token",
                                               "mask_token", "cls_token", "sep_token"};

// What the files beside the vocabulary say of special tokens.
struct Config {
  RoleNames roles;
  std::vector<AddedToken> special;  // the roles' tokens, once each
  bool add_prefix_space = false;
  // Of BERT's, under transformers' names.
  bool do_lower_case = true, tokenize_chinese_chars = true;
  std::optional<bool> strip_accents;  // not said: as do_lower_case
  // Of spiece.model's.
  SpieceOptions spiece;
};

std::optional<SpieceOptions::Family> family_named(std::string_view name) {
  using Family = SpieceOptions::Family;
  const auto starts = [&](std::string_view with) { return name.starts_with(with); };
  if (starts("Albert") || name == "albert") return Family::albert;
  if (starts("T5") || name == "t5") return Family::t5;
  if (starts("XLNet") || name == "xlnet") return Family::xlnet;
  if (starts("Gemma") || starts("gemma")) return Family::gemma;
  return std::nullopt;
}

AddedToken special_token(const json& value) {
  AddedToken token;
  if (value.is_string()) {
    token.content = value.get<std::string>();
    return token;
  }
  token.content = value.at("content").get<std::string>();
  token.single_word = value.value("single_word", false);
  token.lstrip = value.value("lstrip", false);
  token.rstrip = value.value("rstrip", false);
  token.normalized = value.value("normalized", false);
  token.special = value.value("special", true);
  return token;
}

// added_tokens_decoder of tokenizer_config.json: tokens by id.
void read_added_tokens(const json& tokens, const fs::path& path, SpieceOptions& options) {
  std::map<TokenId, AddedToken> by_id;
  for (const auto& [key, token] : tokens.items()) {
    TokenId id = -1;
    const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (problem != std::errc() || end != key.data() + key.size())
      throw_error(ErrorCode::corrupt_data, "{}: '{}' in added_tokens_decoder is not a token id",
                  path.string(), key);
    by_id[id] = special_token(token);
  }
  options.added_tokens.clear();
  for (const auto& [id, token] : by_id) options.added_tokens.emplace_back(token, id);
}

Config read_config(const fs::path& directory) {
  Config config;
  // tokenizer_config.json is the newer file: what it says wins.
  for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const fs::path path = directory / name;
    if (!fs::exists(path)) continue;
    const json file = read_json_file(path.string());
    try {
      for (const char* role : kRoles) {
        if (!file.contains(role) || file[role].is_null()) continue;
        const AddedToken token = special_token(file[role]);
        config.roles[role] = token.content;
        std::erase_if(config.special, [&](const auto& t) { return t.content == token.content; });
        config.special.push_back(token);
        std::erase_if(config.spiece.special_tokens, [&](const auto& t) { return t.first == role; });
        config.spiece.special_tokens.emplace_back(role, token);
      }
      config.add_prefix_space = file.value("add_prefix_space", config.add_prefix_space);
      config.do_lower_case = file.value("do_lower_case", config.do_lower_case);
      config.tokenize_chinese_chars =
          file.value("tokenize_chinese_chars", config.tokenize_chinese_chars);
      if (file.contains("strip_accents") && !file["strip_accents"].is_null())
        config.strip_accents = file["strip_accents"].get<bool>();
      if (file.contains("do_lower_case")) config.spiece.do_lower_case = config.do_lower_case;
      config.spiece.keep_accents = file.value("keep_accents", config.spiece.keep_accents);
      config.spiece.extra_ids = file.value("extra_ids", config.spiece.extra_ids);
      const auto boolean = [&](const char* key, bool& value) {
        if (file.contains(key) && !file[key].is_null()) value = file[key].get<bool>();
      };
      boolean("add_bos_token", config.spiece.add_bos_token);
      boolean("add_eos_token", config.spiece.add_eos_token);
      boolean("legacy", config.spiece.legacy);
      if (file.contains("add_prefix_space") && !file["add_prefix_space"].is_null())
        config.spiece.add_prefix_space = file["add_prefix_space"].get<bool>();
      if (file.contains("added_tokens_decoder"))
        read_added_tokens(file["added_tokens_decoder"], path, config.spiece);
    } catch (const json::exception& error) {
      throw_error(ErrorCode::corrupt_data, "{}: {}", path.string(), error.what());
    }
  }
  return config;
}

// Where no file names the special tokens, those that GPT-2 and RoBERTa have under their usual
// names.
std::vector<AddedToken> usual_tokens(const BpeDefinition& definition) {
  std::vector<AddedToken> tokens;
  for (const char* name : {"<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>"}) {
    const auto is_name = [&](const auto& token) { return token && *token == name; };
    if (std::any_of(definition.tokens.begin(), definition.tokens.end(), is_name))
      tokens.push_back({.content = name, .lstrip = std::string_view(name) == "<mask>"});
  }
  return tokens;
}

// GPT-2's alphabet in a file of BPE: the pre-tokenizer, or one of several, writes it.
bool is_byte_level(const json& file) {
  const std::function<bool(const json&)> is = [&](const json& step) {
    if (!step.is_object()) return false;
    const auto type = step.find("type"), list = step.find("pretokenizers");
    if (type != step.end() && *type == "ByteLevel") return true;
    return list != step.end() && list->is_array() && std::any_of(list->begin(), list->end(), is);
  };
  return file.contains("pre_tokenizer") && is(file["pre_tokenizer"]);
}

std::shared_ptr<const Tokenizer> from_tokenizer_json(const std::string& path,
                                                     const Config& config) {
  const json file = parse_json(read_text_file(path), path);
  const json* model = file.is_object() && file.contains("model") ? &file["model"] : nullptr;
  const bool is_object = model != nullptr && model->is_object();
  const json type = is_object && model->contains("type") ? (*model)["type"] : json();
  if (type == "WordPiece") return make_word_piece(parse_word_piece(file, path), path, config.roles);
  // Old files do not say; a list of tokens with scores is a unigram model's.
  const bool has_scores = is_object && model->contains("vocab") && (*model)["vocab"].is_array();
  if (type == "Unigram" || (type.is_null() && has_scores))
    return make_sentence_piece(parse_sentence_piece(file, path), path, config.roles);
  if (type == "BPE" && !is_byte_level(file))
    return make_sentence_piece(parse_sentence_piece(file, path), path, config.roles);
  return make_byte_level_bpe(parse_bpe(file, path), path, config.roles);
}

// Which class of transformers the files beside a SentencePiece model name, if any does.
std::optional<SpieceOptions::Family> spiece_family(const fs::path& directory,
                                                   SpieceModel::Type type) {
  for (const auto& [name, key] : {std::pair("tokenizer_config.json", "tokenizer_class"),
                                  std::pair("config.json", "model_type")}) {
    const fs::path path = directory / name;
    if (!fs::exists(path)) continue;
    const json file = read_json_file(path.string());
    if (!file.is_object() || !file.contains(key) || file[key].is_null()) continue;
    if (!file[key].is_string())
      throw_error(ErrorCode::corrupt_data, "{}: {} is {}", path.string(), key, file[key].dump());
    const auto family_name = file[key].get<std::string>();
    const auto family = family_named(family_name);
    if (type == SpieceModel::Type::bpe || (family && *family != SpieceOptions::Family::gemma))
      return family;
    throw Error(
        ErrorCode::unavailable,
        fmt::format("{}: a unigram model for '{}' is not supported", path.string(), family_name),
        "Shoal knows those of ALBERT, T5 and XLNet; of others it reads the tokenizer.json "
        "that transformers saves");
  }
  return std::nullopt;
}

// The ranks of OpenAI's tiktoken, as Llama 3's own tokenizer.model holds them: base64, space, rank.
bool is_tiktoken(std::string_view model) {
  const std::string_view line = model.substr(0, std::min(model.find('\n'), model.size()));
  const std::size_t space = std::min(line.find(' '), line.size());
  return space > 0 && space + 1 < line.size() && from_base64(line.substr(0, space)) &&
         line.find_first_not_of("0123456789", space + 1) == std::string_view::npos;
}

std::shared_ptr<const Tokenizer> from_spiece_model(const fs::path& path, Config config) {
  const std::string source = path.string(), bytes = read_text_file(source);
  if (is_tiktoken(bytes))
    throw Error(ErrorCode::unavailable,
                fmt::format("{} holds tiktoken's ranks, not a SentencePiece model", source),
                "give the tokenizer.json that lies beside it in Hugging Face's directories");
  SpieceModel model = read_spiece_model(bytes, source);
  config.spiece.family = spiece_family(path.parent_path(), model.type);
  if (model.type == SpieceModel::Type::bpe)
    for (const auto& [role, token] : spiece_special_tokens(model, config.spiece))
      config.roles[role] = token.content;
  return make_sentence_piece(spiece_definition(std::move(model), source, config.spiece), source,
                             config.roles);
}

std::shared_ptr<const Tokenizer> from_vocab_txt(const std::string& path, const Config& config) {
  WordPieceFileOptions options;
  options.normalize.lowercase = config.do_lower_case;
  options.normalize.strip_accents = config.strip_accents.value_or(config.do_lower_case);
  options.normalize.handle_chinese_chars = config.tokenize_chinese_chars;
  const auto name = [&](const char* role, std::string& token) {
    if (const auto named = config.roles.find(role); named != config.roles.end())
      token = named->second;
  };
  name("unk_token", options.unk_token);
  name("cls_token", options.cls_token);
  name("sep_token", options.sep_token);
  if (!config.special.empty()) options.special_tokens = config.special;
  return make_word_piece(parse_vocab_txt(read_text_file(path), path, options), path, config.roles);
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  const fs::path place(path);
  if (!fs::exists(place)) throw_error(ErrorCode::not_found, "there is no tokenizer at '{}'", path);
  const bool is_directory = fs::is_directory(place);
  const fs::path directory = is_directory ? place : place.parent_path();
  const fs::path whole = is_directory ? place / "tokenizer.json" : place;
  const Config config = read_config(directory);
  if (!is_directory && place.extension() == ".txt") return from_vocab_txt(path, config);
  if (!is_directory && place.extension() == ".model") return from_spiece_model(place, config);
  if (fs::exists(whole)) return from_tokenizer_json(whole.string(), config);
  const fs::path vocab = place / "vocab.json", merges = place / "merges.txt";
  const fs::path word_pieces = place / "vocab.txt";
  if (fs::exists(word_pieces)) return from_vocab_txt(word_pieces.string(), config);
  for (const char* name : {"spiece.model", "tokenizer.model"})
    if (fs::exists(place / name)) return from_spiece_model(place / name, config);
  if (!fs::exists(vocab) || !fs::exists(merges))
    throw Error(ErrorCode::not_found,
                fmt::format("'{}' holds no tokenizer.json, no vocab.json with merges.txt, no "
                            "vocab.txt, no spiece.model and no tokenizer.model",
                            path),
                "give the directory that a tokenizer was saved in");
  BpeFileOptions options;
  options.add_prefix_space = config.add_prefix_space;
  options.added_tokens = config.special;
  BpeDefinition definition = parse_vocab_and_merges(read_text_file(vocab.string()),
                                                    read_text_file(merges.string()), path, options);
  if (config.special.empty()) add_tokens(definition, usual_tokens(definition));
  return make_byte_level_bpe(std::move(definition), path, config.roles);
}

std::shared_ptr<const ByteLevelBpe> load_vocab_and_merges(const std::string& vocab_path,
                                                          const std::string& merges_path,
                                                          const BpeFileOptions& options) {
  return ByteLevelBpe::from_vocab_and_merges(read_text_file(vocab_path),
                                             read_text_file(merges_path),
                                             vocab_path + " + " + merges_path, options);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory,
                    std::int64_t model_max_length, std::optional<TokenId> padding) {
  std::error_code failure;
  fs::create_directories(directory, failure);
  if (failure)
    throw_error(ErrorCode::io, "cannot make the directory '{}': {}", directory, failure.message());
  const TokenRoles& roles = tokenizer.roles();
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  const std::array<std::optional<TokenId>, 7> ids = {
      roles.bos, roles.eos, roles.pad ? roles.pad : padding, roles.unk, roles.mask,
      roles.cls, roles.sep};
  for (std::size_t i = 0; i < kRoles.size(); ++i)
    if (const auto token = ids[i] ? tokenizer.id_to_token(*ids[i]) : std::nullopt)
      map[kRoles[i]] = *token;
  nlohmann::ordered_json config = map;
  config["clean_up_tokenization_spaces"] = false;
  if (model_max_length > 0) config["model_max_length"] = model_max_length;
  // The class that takes tokenizer.json as it is; model classes add tokens of their own.
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  const fs::path base(directory);
  const auto write = [&](const char* name, std::string_view text) {
    write_file_atomically((base / name).string(), text);
  };
  write("special_tokens_map.json", map.dump(2) + "\n");
  write("tokenizer_config.json", config.dump(2) + "\n");
  for (const auto& file : tokenizer.files()) write(file.name.c_str(), file.text);
}

}  // namespace shoal
