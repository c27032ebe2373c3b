// Rows with a source and a target as token sequences, and mBART's language tokens.
#include "shoal/train/tasks/sequence_to_sequence/pair_dataset.h"

#include <fstream>

#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/tasks/sequence_to_sequence/language_template.h"

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryDirectory;

// Ids: <pad> 0, </s> 1, <unk> 2, en_XX 3, de_DE 4, and from 5 on a, b, c, d and e, each with the
// space before it. A text ends as mBART's do, with </s> and its language.
std::shared_ptr<const Tokenizer> letters() {
  json vocabulary = json::array();
  for (const char* piece : {"<pad>", "</s>", "<unk>", "en_XX", "de_DE", "\u2581a", "\u2581b",
                            "\u2581c", "\u2581d", "\u2581e"})
    vocabulary.push_back({piece, -1.0});
  json added = json::array(), specials = json::object();
  for (int id = 0; id < 5; ++id) {
    const json& token = vocabulary[static_cast<std::size_t>(id)][0];
    added.push_back({{"id", id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  for (const auto& [token, id] : {std::pair{"</s>", 1}, {"en_XX", 3}})
    specials[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
  const auto special = [](const char* token) {
    return json{{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
  };
  const auto text = [](const char* name) {
    return json{{"Sequence", {{"id", name}, {"type_id", 0}}}};
  };
  const json space = {{"type", "Metaspace"},
                      {"replacement", "\u2581"},
                      {"prepend_scheme", "always"},
                      {"split", true}};
  const json file = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", space},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {text("A"), special("</s>"), special("en_XX")}},
        {"pair", {text("A"), text("B"), special("</s>"), special("en_XX")}},
        {"special_tokens", specials}}},
      {"decoder", space},
      {"model",
       {{"type", "Unigram"}, {"unk_id", 2}, {"vocab", vocabulary}, {"byte_fallback", false}}}};
  return tokenizer_from_json(file.dump(), "tokenizer.json");
}

class Pairs : public ::testing::Test {
 protected:
  std::shared_ptr<const RecordFile> rows(const std::string& name, const std::string& text,
                                         BadRecords bad = BadRecords::stop) const {
    std::ofstream(folder_ / name) << text;
    return std::make_shared<RecordFile>(folder_ / name, RecordOptions{.bad = bad});
  }
  PairDataset dataset(std::shared_ptr<const RecordFile> file, PairOptions options) const {
    options.source_template = with_language(*tokenizer_, "en_XX");
    options.target_template = with_language(*tokenizer_, "de_DE");
    return {std::move(file), tokenizer_, std::move(options)};
  }
  const std::shared_ptr<const Tokenizer> tokenizer_ = letters();
  TemporaryDirectory folder_;
};

TEST_F(Pairs, HaveTheLanguageOfTheirSide) {
  const PairDataset pairs = dataset(rows("rows.csv", "x,y\na b,c\nd,e e e\n"),
                                    {.columns = {.source = "x", .target = "y"}});
  ASSERT_EQ(pairs.size(), 2);
  EXPECT_THAT(pairs.get(0).input_ids, ElementsAre(5, 6, 1, 3));
  EXPECT_THAT(pairs.get(0).labels, ElementsAre(7, 1, 4));
  EXPECT_THAT(pairs.get(1).labels, ElementsAre(9, 9, 9, 1, 4));
}

TEST_F(Pairs, AreColumnsOfATableWithTabs) {
  const PairDataset pairs = dataset(rows("rows.tsv", "de\tnote\ten\nc\tb\ta b\n\"e\"\t\td\n"),
                                    {.columns = {.source = "en", .target = "de"}});
  ASSERT_EQ(pairs.size(), 2);
  EXPECT_THAT(pairs.get(0).input_ids, ElementsAre(5, 6, 1, 3));
  EXPECT_THAT(pairs.get(0).labels, ElementsAre(7, 1, 4));
  EXPECT_THAT(pairs.get(1).input_ids, ElementsAre(8, 1, 3));
  EXPECT_THAT(pairs.get(1).labels, ElementsAre(2, 1, 4));  // quotation marks are text
}

TEST_F(Pairs, AreFoundWithinAnObject) {
  const PairDataset pairs =
      dataset(rows("rows.jsonl", R"({"translation": {"en": "a", "de": "b", "fr": "c"}})"),
              {.columns = {.source = "en", .target = "de", .within = "translation"}});
  EXPECT_THAT(pairs.get(0).input_ids, ElementsAre(5, 1, 3));
  EXPECT_THAT(pairs.get(0).labels, ElementsAre(6, 1, 4));
}

TEST_F(Pairs, AreCutBeforeTheirSpecialTokens) {
  const PairDataset pairs = dataset(rows("rows.csv", "x,y\na b c d e,e d c b a\n"),
                                    {.columns = {.source = "x", .target = "y"},
                                     .source_prefix = "e ",
                                     .max_source_length = 5,
                                     .max_target_length = 4});
  EXPECT_THAT(pairs.get(0).input_ids, ElementsAre(9, 5, 6, 1, 3));
  EXPECT_THAT(pairs.get(0).labels, ElementsAre(9, 8, 1, 4));
  EXPECT_THROW(dataset(rows("rows.csv", "x,y\na,b\n"),
                       {.columns = {.source = "x", .target = "y"}, .max_target_length = 2}),
               Error);
}

TEST_F(Pairs, MayLackATargetWhereTheyArePredicted) {
  const std::string text =
      "{\"translation\": {\"en\": \"a\"}}\n{\"translation\": {\"en\": \"b\", \"de\": \"c\"}}\n";
  const PairColumns columns{.source = "en", .target = "de", .within = "translation"};
  const PairDataset pairs =
      dataset(rows("rows.jsonl", text), {.columns = columns, .may_lack_targets = true});
  EXPECT_THAT(pairs.get(0).labels, IsEmpty());
  EXPECT_THAT(pairs.get(1).labels, ElementsAre(7, 1, 4));
  try {
    dataset(rows("rows.jsonl", text), {.columns = columns});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.message(),
                HasSubstr("rows.jsonl, line 1: 'translation' has no text in 'de'"));
  }
  const PairDataset left = dataset(rows("rows.jsonl", text, BadRecords::skip),
                                   {.columns = columns, .bad = BadRecords::skip});
  EXPECT_EQ(left.size(), 1);
  EXPECT_EQ(left.skipped(), 1);
  EXPECT_THAT(left.first_skipped(), HasSubstr("line 1"));
}

TEST_F(Pairs, RefuseAFieldThatIsNoObject) {
  EXPECT_THROW(dataset(rows("rows.jsonl", R"({"translation": "a"})"),
                       {.columns = {.source = "en", .target = "de", .within = "translation"}}),
               Error);
}

TEST_F(Pairs, LanguagesMustBeTokensThatATemplateHas) {
  EXPECT_THROW(with_language(*tokenizer_, "fr_XX"), Error);
  const SequenceTemplate english = with_language(*tokenizer_, "en_XX");
  ASSERT_EQ(english.single.size(), 3U);
  EXPECT_EQ(english.single[1].id, 1);
  EXPECT_EQ(english.single[2].id, 3);
}

}  // namespace
}  // namespace shoal
