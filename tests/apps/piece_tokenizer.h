// A small tokenizer of whole words.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace shoal {

// A unigram model of whole words, with T5's </s> behind each text, or between BART's <s> and </s>.
// Ids: <pad> 0, </s> 1, <unk> 2, <s> 3, the words, a space, `more` special tokens.
inline void write_piece_tokenizer(const std::string& directory,
                                  const std::vector<std::string>& words,
                                  const std::vector<std::string>& more = {}, bool between = false) {
  using nlohmann::json;
  std::filesystem::create_directories(directory);
  json vocabulary = json::array(), added = json::array();
  const auto add_special = [&](const std::string& token) {
    added.push_back({{"id", vocabulary.size()},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocabulary.push_back({token, 0.0});
  };
  for (const char* token : {"<pad>", "</s>", "<unk>", "<s>"}) add_special(token);
  for (const std::string& word : words) vocabulary.push_back({"\u2581" + word, -1.0});
  vocabulary.push_back({"\u2581", -2.0});
  for (const std::string& token : more) add_special(token);
  const json space = {{"type", "Metaspace"},
                      {"replacement", "\u2581"},
                      {"prepend_scheme", "always"},
                      {"split", true}};
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
             second = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}},
             begin = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
             end = {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}};
  const auto special = [](const char* token, int id) {
    return json{{"id", token}, {"ids", {id}}, {"tokens", {token}}};
  };
  json single = between ? json{begin, text, end} : json{text, end};
  const json file = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", space},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", std::move(single)},
        {"pair", {text, end, second, end}},
        {"special_tokens", {{"</s>", special("</s>", 1)}, {"<s>", special("<s>", 3)}}}}},
      {"decoder", space},
      {"model",
       {{"type", "Unigram"}, {"unk_id", 2}, {"vocab", vocabulary}, {"byte_fallback", false}}}};
  std::ofstream(directory + "/tokenizer.json") << file;
  json names = {{"pad_token", "<pad>"},
                {"eos_token", "</s>"},
                {"unk_token", "<unk>"},
                {"bos_token", "<s>"},
                {"tokenizer_class", "PreTrainedTokenizerFast"}};
  for (const std::string& token : more)
    if (token == "<mask>") names["mask_token"] = token;
  std::ofstream(directory + "/tokenizer_config.json") << names;
}

}  // namespace shoal
