// Added tokens that lie outside tokenizer.json, against transformers
// (tools/golden/make_added_tokens.py), and fields that are null.
#include <filesystem>
#include <fstream>
#include <functional>

#include "golden_cases.h"
#include "support/error_text.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using nlohmann::json;
using test::error_text;
using ::testing::HasSubstr;
using testing::read_tokenizer_golden;
using testing::TemporaryDirectory;

using Ids = std::vector<TokenId>;
using Files = std::map<std::string, json>;  // strings are written as they are

std::string golden_file(const std::string& name) {
  return testing::golden_path("tokenizer/" + name);
}

void write_files(const Files& files, const std::string& directory) {
  for (const auto& [name, content] : files)
    std::ofstream(directory + "/" + name)
        << (content.is_string() ? content.get<std::string>() : content.dump());
}

std::shared_ptr<const Tokenizer> open_files(const Files& files) {
  const TemporaryDirectory folder;
  write_files(files, folder.path());
  return load_tokenizer(folder.path());
}

const json& golden() {
  static const json all = read_tokenizer_golden("added.cases.json");
  return all;
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& [name, one] : golden().at("cases").items()) names.push_back(name);
  return names;
}

class AddedTokens : public ::testing::TestWithParam<std::string> {
 protected:
  const json& theirs() const { return golden().at("cases").at(GetParam()); }
  void fill(const std::string& directory) const {
    write_files(theirs().at("files").get<Files>(), directory);
    if (!theirs().at("model").is_string()) return;
    const std::string model = theirs().at("model");
    if (model.ends_with(".json"))
      std::filesystem::copy(golden_file(model), directory + "/tokenizer.json");
    else
      std::filesystem::copy(golden_file("sentence_piece/" + model), directory);
  }
  void expect_same(const Tokenizer& ours) const {
    const json& texts = golden().at("texts");
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const std::string text = texts[i];
      const Ids ids = ours.encode(text).ids;
      EXPECT_EQ(ids, theirs().at("ids")[i].get<Ids>()) << text;
      EXPECT_EQ(ours.decode(ids), theirs().at("decoded")[i].get<std::string>()) << text;
    }
    EXPECT_EQ(ours.vocab_size(), theirs().at("size").get<std::int64_t>());
    for (const auto& [token, id] : theirs().at("added").items())
      EXPECT_EQ(ours.token_to_id(token), id.get<TokenId>()) << token;
  }
};

TEST_P(AddedTokens, HaveTransformersIds) {
  const TemporaryDirectory folder;
  fill(folder.path());
  const auto ours = load_tokenizer(folder.path());
  expect_same(*ours);
  const std::string a = golden().at("texts")[0], b = golden().at("texts")[1];
  const Encoding second = ours->encode(b, {.add_special_tokens = false});
  EXPECT_EQ(
      join(ours->sequence_template(), ours->encode(a, {.add_special_tokens = false}), &second).ids,
      theirs().at("pairs").get<Ids>());
}

TEST_P(AddedTokens, SurviveTheTokenizersOwnFiles) {
  const TemporaryDirectory folder, saved;
  fill(folder.path());
  const auto first = load_tokenizer(folder.path());
  save_tokenizer(*first, saved.path());
  const auto second = load_tokenizer(saved.path());
  EXPECT_EQ(first->hash(), second->hash());
  expect_same(*second);
}

// Default roles of transformers' classes count only if the vocabulary contains them.
TEST_P(AddedTokens, HaveTheirRoles) {
  const TemporaryDirectory folder;
  fill(folder.path());
  const TokenRoles roles = load_tokenizer(folder.path())->roles();
  for (const auto& [name, ours] : {std::pair{"bos", roles.bos},
                                   {"eos", roles.eos},
                                   {"unk", roles.unk},
                                   {"sep", roles.sep},
                                   {"pad", roles.pad},
                                   {"cls", roles.cls},
                                   {"mask", roles.mask}}) {
    const json& id = theirs().at("roles").at(name);
    const bool beside_json = theirs().at("model").is_string() &&
                             theirs().at("model").get<std::string>().ends_with(".json");
    if (beside_json && id.is_null()) continue;  // a role that no file states is named by its class
    if (ours || GetParam().starts_with("bert") || GetParam().starts_with("gpt2")) {
      EXPECT_EQ(ours ? json(*ours) : json(), id) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Directories, AddedTokens, ::testing::ValuesIn(case_names()),
                         [](const auto& one) { return one.param; });

const std::string kWords = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nearth\n";

// Hugging Face's slow tokenizers keep such ids; its fast ones give the next free ones instead.
TEST(StatedIds, NeedNotFollowTheVocabulary) {
  const auto tokenizer =
      open_files({{"vocab.txt", kWords}, {"added_tokens.json", {{"<x>", 20}, {"<y>", 9}}}});
  EXPECT_EQ(tokenizer->encode("the <x> <y> earth").ids, (Ids{2, 5, 20, 9, 6, 3}));
  EXPECT_EQ(tokenizer->vocab_size(), 9);
  EXPECT_EQ(tokenizer->max_id(), 20);
  const TemporaryDirectory saved;
  save_tokenizer(*tokenizer, saved.path());
  EXPECT_EQ(load_tokenizer(saved.path())->hash(), tokenizer->hash());
}

TEST(StatedIds, AreNotGivenTwice) {
  const auto opened = [](const json& added, const json& config = json::object()) {
    return error_text([&] {
      open_files(
          {{"vocab.txt", kWords}, {"added_tokens.json", added}, {"tokenizer_config.json", config}});
    });
  };
  EXPECT_THAT(opened({{"<x>", 5}}), HasSubstr("the tokens 'the' and '<x>' both have the id 5"));
  EXPECT_THAT(opened({{"<x>", 7}, {"<y>", 7}}), HasSubstr("both have the id 7"));
  EXPECT_THAT(opened({{"the", 9}}), HasSubstr("'the' has the id 5 in one file and 9 in another"));
  EXPECT_THAT(opened({{"<x>", -1}}), HasSubstr("'-1' is not a token id"));
  EXPECT_THAT(opened({{"<x>", "7"}}), HasSubstr("the id of '<x>' is \"7\""));
  EXPECT_THAT(opened({{"<x>", 60'000'000}}), HasSubstr("the highest id is 60000000, for 8 tokens"));
  EXPECT_THAT(opened({}, {{"added_tokens_decoder", {{"7a", {{"content", "<x>"}}}}}}),
              HasSubstr("'7a' is not a token id"));
  EXPECT_THAT(opened({}, {{"added_tokens_decoder", {{"7", {{"lstrip", true}}}}}}),
              HasSubstr("has no content"));
  EXPECT_THAT(opened({}, {{"pad_token", 3}}), HasSubstr("pad_token"));
}

// A unigram model has a score for each id, so its ids have no gap.
TEST(StatedIds, FollowTheVocabularyOfAUnigramModel) {
  const TemporaryDirectory folder;
  std::filesystem::copy(golden_file("sentence_piece/albert/spiece.model"), folder.path());
  write_files({{"added_tokens.json", {{"<x>", 450}}}}, folder.path());
  EXPECT_THAT(error_text([&] { load_tokenizer(folder.path()); }), HasSubstr("id 450"));
}

// transformers too appends tokens of roles that a tokenizer.json lacks.
TEST(AddedTokensOfTokenizerJson, AreCompletedByTheFilesBesideIt) {
  const json file = json::parse(read_text_file(golden_file("word_piece.json")));
  const auto plain = open_files({{"tokenizer.json", file}});
  const auto more =
      open_files({{"tokenizer.json", file},
                  {"special_tokens_map.json",
                   {{"pad_token", "<pad>"}, {"additional_special_tokens", {"<x>", "<y>"}}}}});
  const TokenId next = plain->max_id() + 1;
  EXPECT_EQ(more->roles().pad, next);
  EXPECT_EQ(more->token_to_id("<x>"), next + 1);
  EXPECT_EQ(more->token_to_id("<y>"), next + 2);
}

TEST(NullFields, AreAbsentInALlamaDirectoryOfTransformers) {
  Files files = golden().at("saved").at("files").get<Files>();
  files["tokenizer.json"] = read_text_file(golden_file("sentence_piece/llama.json"));
  const auto tokenizer = open_files(files);
  const json& texts = golden().at("texts");
  for (std::size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(tokenizer->encode(texts[i].get<std::string>()).ids,
              golden().at("saved").at("ids")[i].get<Ids>());
}

// The vocabulary size, tokens of a few texts and all roles; "refused" if the files do not open.
std::string outcome(const Files& files, const std::string& model) {
  const TemporaryDirectory folder;
  write_files(files, folder.path());
  if (!model.empty()) std::filesystem::copy(golden_file("sentence_piece/" + model), folder.path());
  try {
    const auto tokenizer = load_tokenizer(folder.path());
    const TokenRoles& r = tokenizer->roles();
    std::string text = std::to_string(tokenizer->vocab_size());
    for (const char* line :
         {"The earth<x> <pad>abc", " <mask><a> \u00e9e\u4f60", "<image> <e>the"}) {
      const Ids ids = tokenizer->encode(line).ids;
      text += "\n" + tokenizer->decode(ids) + "|" + tokenizer->decode(ids, false);
      for (const TokenId id : ids) text += " " + std::to_string(id);
    }
    for (const auto& role : {r.bos, r.eos, r.pad, r.unk, r.mask, r.cls, r.sep})
      text += " " + std::to_string(role.value_or(-1));
    return text;
  } catch (const Error&) {
    return "refused";
  }
}

// Calls field(pointer) for every field of every object. Large objects, such as
// vocabularies, are left out.
void each_field(const json& value, const json::json_pointer& at,
                const std::function<void(const json::json_pointer&)>& field) {
  constexpr std::size_t kLarge = 60, kItems = 2;
  if (value.is_object() && value.size() < kLarge)
    for (const auto& [key, inner] : value.items()) {
      field(at / key);
      each_field(inner, at / key, field);
    }
  if (value.is_array())
    for (std::size_t i = 0; i < std::min(value.size(), kItems); ++i)
      each_field(value[i], at / i, field);
}

void expect_null_is_absent(const Files& files, const std::string& model = "") {
  ASSERT_NE(outcome(files, model), "refused");
  for (const auto& [name, content] : files) {
    if (content.is_string()) continue;
    each_field(content, json::json_pointer(), [&](const json::json_pointer& at) {
      Files absent = files, null = files;
      absent[name][at.parent_pointer()].erase(at.back());
      null[name][at] = nullptr;
      EXPECT_EQ(outcome(null, model), outcome(absent, model)) << name << at.to_string();
    });
  }
}

json flags(const char* content) {
  return {{"content", content}, {"lstrip", true},  {"rstrip", true},
          {"normalized", true}, {"special", true}, {"single_word", true}};
}

TEST(NullFields, AreAbsentInFilesBesideAVocabulary) {
  const json config = {{"add_prefix_space", true},
                       {"do_lower_case", false},
                       {"tokenize_chinese_chars", false},
                       {"strip_accents", true},
                       {"keep_accents", true},
                       {"extra_ids", 3},
                       {"add_bos_token", false},
                       {"add_eos_token", true},
                       {"legacy", true},
                       {"pad_token", flags("<pad>")},
                       {"extra_special_tokens", {"<e>"}},
                       {"image_token", "<image>"},
                       {"model_max_length", 5},
                       {"chat_template", "x"},
                       {"tokenizer_class", ""}};
  const json map = {{"mask_token", flags("<mask>")},
                    {"unk_token", "[UNK]"},
                    {"additional_special_tokens", {flags("<a>")}}};
  json decoded = config;
  decoded["added_tokens_decoder"] = {{"7", flags("<x>")}};
  const json added = {{"<x>", 7}, {"<y>", 8}};
  const Files words = {{"vocab.txt", kWords}, {"special_tokens_map.json", map}};
  const auto with = [](Files files, const std::string& name, const json& content) {
    files[name] = content;
    return files;
  };
  expect_null_is_absent(
      with(with(words, "tokenizer_config.json", config), "added_tokens.json", added));
  expect_null_is_absent(with(words, "tokenizer_config.json", decoded));
  const Files bpe = {{"vocab.json", R"({"a":0,"b":1,"ab":2,"<s>":3,"</s>":4,"[UNK]":5,"c":6})"},
                     {"merges.txt", "a b\n"},
                     {"special_tokens_map.json", {{"bos_token", "<s>"}, {"eos_token", "</s>"}}}};
  expect_null_is_absent(with(bpe, "tokenizer_config.json", decoded));
  for (const auto& [model, name] : {std::pair("llama/tokenizer.model", "LlamaTokenizer"),
                                    std::pair("t5/spiece.model", "T5Tokenizer")}) {
    json of_class = config;
    of_class["tokenizer_class"] = name;
    expect_null_is_absent({{"tokenizer_config.json", of_class},
                           {"special_tokens_map.json", map},
                           {"config.json", {{"model_type", "t5"}}}},
                          model);
  }
}

TEST(NullFields, AreAbsentInATokenizerJson) {
  for (const char* name : {"llama.json", "word_piece.json", "sentence_piece/t5.json"}) {
    SCOPED_TRACE(name);
    json file = json::parse(read_text_file(golden_file(name)));
    file["novelty"] = nullptr;
    expect_null_is_absent({{"tokenizer.json", file}});
  }
}

}  // namespace
}  // namespace shoal
