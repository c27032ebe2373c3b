// Nothing in a tokenizer.json is ignored silently: the error names each unsupported part.
#include "support/golden.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using nlohmann::json;

json plain() { return json::parse(read_text_file(testing::golden_path("tokenizer/plain.json"))); }

void expect_refused(const json& file, ErrorCode code, const std::string& text) {
  try {
    tokenizer_from_json(file.dump(), "t.json");
    ADD_FAILURE() << "accepted; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), ::testing::StartsWith("t.json"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
    EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("\n")));
  }
}

struct Change {
  const char* pointer;
  json value;
  ErrorCode code;
  const char* text;
};

// An error message shows only the beginning of a long name.
TEST(TokenizerJson, LongNamesAreShortened) {
  const std::string name(1'000'000, 'n');
  const auto problem = [](const json& file) {
    try {
      tokenizer_from_json(file.dump(), "t.json");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  json merge = plain(), unknown = plain(),
       word_piece = json::parse(read_text_file(testing::golden_path("tokenizer/word_piece.json")));
  merge["model"]["merges"].push_back("a " + name);
  unknown["model"]["unk_token"] = name;
  word_piece["model"]["unk_token"] = name;
  for (const json& file : {merge, unknown, word_piece}) {
    const std::string text = problem(file);
    EXPECT_THAT(text, ::testing::HasSubstr("nnn...'"));
    EXPECT_LT(text.size(), 2'000U);
  }
}

TEST(TokenizerJson, ChangedFilesAreRefusedByName) {
  constexpr auto kNo = ErrorCode::unavailable;
  constexpr auto kBad = ErrorCode::corrupt_data;
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", "\\b"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const Change changes[] = {
      {"/normalizer", {{"type", "Novel"}}, kNo, "the normalizer 'Novel' is not supported"},
      {"/model/type", "WordLevel", kNo, "the model type \"WordLevel\""},
      {"/model/dropout", 0.1, kNo, "model.dropout 0.1"},
      {"/model/end_of_word_suffix", "</w>", kNo, "model.end_of_word_suffix"},
      {"/model/continuing_subword_prefix", "##", kNo, "model.continuing_subword_prefix"},
      {"/model/novelty", 1, kNo, "'novelty' in model"},
      {"/novelty", 1, kNo, "'novelty' in the file"},
      {"/pre_tokenizer/type", "Novel", kNo, "the pre-tokenizer 'Novel'"},
      {"/pre_tokenizer", split, kNo, "'\\b'"},
      {"/post_processor/type", "Novel", kNo, "the post-processor 'Novel'"},
      {"/decoder/type", "CTC", kNo, "the decoder 'CTC'"},
      {"/model/unk_token", "<nope>", kBad, "lacks the unk_token '<nope>'"},
      {"/model/vocab/a", "x", kBad, "the id of 'a' is \"x\""},
      {"/model/vocab/a", -1, kBad, "the id of 'a' is -1"},
      {"/model/vocab/a", 1e15, kBad, "the id of 'a' is"},
      {"/model/vocab/a", 99999999999, kBad, "the id of 'a' is 99999999999"},
      {"/model/vocab/a", 5, kBad, "both have the id 5"},
      {"/model/merges/3", "one two three", kBad, "merge 4 is 'one two three'"},
      {"/model/merges/3", 7, kBad, "merge 4 is 7"},
      {"/model/merges/0", {"q", "zzz"}, kBad, "needs the token 'zzz'"},
      {"/model/vocab", json::array(), kBad, "not an object of token: id"},
      {"/added_tokens/0/id", 7, kBad, "claims the id 7, but its place is 0"},
      {"/added_tokens/0/content", "", kBad, "has no content"},
      {"/added_tokens/0/content", 4, kBad, "content is not a string"},
      {"/added_tokens", 3, kBad, "added_tokens is not an array"},
      {"/pre_tokenizer/add_prefix_space", 1, kBad, "add_prefix_space is not true or false"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.pointer + change.value.dump());
    json file = plain();
    file[json::json_pointer(change.pointer)] = change.value;
    expect_refused(file, change.code, change.text);
  }
}

// transformers saves the settings of the last call. The next call sets them anew.
TEST(TokenizerJson, TruncationAndPaddingAreTheTasks) {
  json file = plain();
  file["truncation"] = {{"max_length", 1}};
  file["padding"] = {{"length", 5}};
  EXPECT_EQ(tokenizer_from_json(file.dump(), "t.json")->encode("a b c").ids.size(), 3u);
}

TEST(TokenizerJson, PatternsThatIcuWouldReadOtherwiseAreRefused) {
  for (const auto& [pattern, named] :
       std::initializer_list<std::pair<const char*, const char*>>{{"\\b", "'\\b'"},
                                                                  {"[a&&b]", "'&&'"},
                                                                  {"(?m:a)", "(?m"},
                                                                  {"a{1,2}+", "'}+'"},
                                                                  {"[[:alpha:]]", "[:"},
                                                                  {"\\h", "'\\h'"}}) {
    json file = plain();
    file["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers",
                              {{{"type", "Split"},
                                {"pattern", {{"Regex", pattern}}},
                                {"behavior", "Isolated"},
                                {"invert", false}},
                               plain()["pre_tokenizer"]}}};
    expect_refused(file, ErrorCode::unavailable, named);
  }
  json file = plain();
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers",
                            {{{"type", "Split"},
                              {"pattern", {{"Regex", "(a"}}},
                              {"behavior", "Isolated"},
                              {"invert", false}},
                             plain()["pre_tokenizer"]}}};
  expect_refused(file, ErrorCode::corrupt_data, "does not compile");
}

TEST(TokenizerJson, EveryTruncationIsAnError) {
  const std::string text = plain().dump();
  for (std::size_t size = 0; size < text.size(); size += 97)
    EXPECT_THROW(tokenizer_from_json(std::string_view(text).substr(0, size), "t.json"), Error);
  EXPECT_THROW(tokenizer_from_json("[]", "t.json"), Error);
  EXPECT_THROW(tokenizer_from_json("{}", "t.json"), Error);
}

TEST(VocabAndMerges, BadLinesAreNamed) {
  const auto expect = [](const char* vocab, const char* merges, const char* text) {
    try {
      ByteLevelBpe::from_vocab_and_merges(vocab, merges, "v", {});
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(text));
    }
  };
  expect(R"({"a":0})", "#version: 0.2\na b\n", "needs the token 'b'");
  expect(R"({"a":0,"b":1})", "a b\n", "needs the token 'ab'");
  expect(R"({"a":0})", "a\n", "merge 1 is 'a'");
  expect(R"({"a":0})", "a b c\n", "merge 1 is 'a b c'");
  expect(R"([1])", "", "not an object");
  expect(R"({"a":0,"a":1})", "", "v");
  const auto tokenizer = ByteLevelBpe::from_vocab_and_merges(
      R"({"a":0,"b":1,"ab":2})", "#version: 0.2\r\na b\r\n", "v", {.added_tokens = {}});
  EXPECT_EQ(tokenizer->encode("aabx").ids, (std::vector<TokenId>{0, 2}));  // x: no token, dropped
}

}  // namespace
}  // namespace shoal
