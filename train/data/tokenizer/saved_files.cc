#include "shoal/train/data/tokenizer/saved_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

constexpr std::string_view kConfig = "tokenizer_config.json",
                           kRolesFile = "special_tokens_map.json";
constexpr std::array<std::string_view, 7> kVocabularies = {"tokenizer.json",
                                                           "vocab.txt",
                                                           "vocab.json",
                                                           "merges.txt",
                                                           "spiece.model",
                                                           "tokenizer.model",
                                                           "sentencepiece.bpe.model"};
constexpr std::array<std::string_view, 5> kDescriptions = {
    kConfig, kRolesFile, "added_tokens.json", "chat_template.jinja", "chat_template.json"};
constexpr const char* kTemplates = "additional_chat_templates";  // a folder

// The tokens with roles. Naming a token in a file makes it special, so roles that were only
// inferred from token names are omitted.
nlohmann::ordered_json roles_of(const Tokenizer& tokenizer, std::optional<TokenId> padding) {
  const TokenRoles& roles = tokenizer.roles();
  const std::pair<const char*, std::optional<TokenId>> named[] = {
      {"bos_token", roles.bos},
      {"eos_token", roles.eos},
      {"pad_token", roles.pad ? roles.pad : padding},
      {"unk_token", roles.unk},
      {"mask_token", roles.mask},
      {"cls_token", roles.cls},
      {"sep_token", roles.sep}};
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (const auto& [role, id] : named)
    if (id && (tokenizer.is_special(*id) || id == padding))
      if (const auto token = tokenizer.id_to_token(*id)) map[role] = *token;
  return map;
}

}  // namespace

std::vector<Tokenizer::File> tokenizer_files_at(const std::string& path) {
  const std::filesystem::path place(path);
  const bool whole = is_directory(path);
  const std::filesystem::path directory = whole ? place : place.parent_path();
  std::vector<Tokenizer::File> files;
  const auto keep = [&](std::string_view name) {
    const std::string file = directory / name;
    if (is_regular_file(file)) files.push_back({std::string(name), read_text_file(file)});
  };
  for (const std::string_view name : kVocabularies)
    if (whole || place.filename() == name) keep(name);
  for (const std::string_view name : kDescriptions) keep(name);
  for (const DirectoryEntry& entry : list_directory_if_there(directory / kTemplates))
    keep(fmt::format("{}/{}", kTemplates, entry.name));
  return files;
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory,
                    std::int64_t model_max_length, std::optional<TokenId> padding) {
  make_directories(directory);
  std::map<std::string, std::string, std::less<>> files;
  for (const auto& file : tokenizer.files_read()) files.emplace(file.name, file.text);
  for (auto& file : tokenizer.files()) files.emplace(file.name, std::move(file.text));
  const nlohmann::ordered_json roles = roles_of(tokenizer, padding);
  if (!files.contains(kConfig)) {
    nlohmann::ordered_json config = roles;
    config["clean_up_tokenization_spaces"] = false;
    if (model_max_length > 0) config["model_max_length"] = model_max_length;
    // This class uses tokenizer.json unchanged; model classes add tokens of their own.
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
    files.emplace(kConfig, config.dump(2) + "\n");
    files.emplace(kRolesFile, roles.dump(2) + "\n");
  }
  if (padding && !tokenizer.roles().pad && roles.contains("pad_token"))
    for (const std::string_view name : {kConfig, kRolesFile})
      if (const auto file = files.find(name); file != files.end()) {
        auto json = parse_ordered_json(file->second, file->first);
        json["pad_token"] = roles["pad_token"];
        file->second = json.dump(2) + "\n";
      }
  for (const auto& [name, text] : files) {
    if (name.starts_with(kTemplates)) make_directories(fmt::format("{}/{}", directory, kTemplates));
    write_file_atomically(directory + "/" + name, text);
  }
}

}  // namespace shoal
