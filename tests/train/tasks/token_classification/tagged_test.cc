// Tagged text; labels of tokens against Hugging Face's (tools/golden/make_tasks.py).
#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/tasks/token_classification/tagged_dataset.h"

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;
using Words = std::vector<std::string>;

class TaggedTest : public ::testing::Test {
 protected:
  TaggedText read(const std::string& name, const std::string& text,
                  const TaggedTextOptions& options = {}) {
    write_file_atomically(folder_ / name, text);
    return read_tagged_text(folder_ / name, options);
  }
  std::string error_of(const std::string& name, const std::string& text) {
    try {
      read(name, text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
      return error.what();
    }
    return "no error";
  }
  testing::TemporaryDirectory folder_;
};

TEST_F(TaggedTest, ReadsConllsColumns) {
  const TaggedText text =
      read("a.conll",
           "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\r\nrejects  VBZ I-VP O\n \n\n"
           "caf\xC3\xA9\tB-LOC\nNew York\tI-LOC\n");
  ASSERT_EQ(text.sentences.size(), 2u);
  EXPECT_EQ(text.sentences[0].words, Words({"EU", "rejects"}));
  EXPECT_EQ(text.sentences[0].tags, Words({"B-ORG", "O"}));
  EXPECT_EQ(text.sentences[1].words, Words({"caf\xC3\xA9", "New York"}));
  EXPECT_EQ(text.sentences[1].place, (folder_ / "a.conll") + ", line 7");
  EXPECT_EQ(discover_tags(text).names(), Words({"B-LOC", "B-ORG", "I-LOC", "O"}));
}

TEST_F(TaggedTest, ReadsTheColumnsThatConll2003sScriptReads) {
  for (const json& one :
       json::parse(read_text_file(testing::golden_path("records.json"))).at("tags")) {
    json sentences = json::array();
    for (const TaggedSentence& sentence : read("a.conll", one["text"]).sentences)
      sentences.push_back({sentence.words, sentence.tags});
    EXPECT_EQ(sentences, one["sentences"]) << one;
  }
}

TEST_F(TaggedTest, ReportsProgress) {
  std::string lines, records;
  for (int i = 0; i < 20'000; ++i) {
    lines += "word B-X\n\n";
    records += R"({"tokens": ["word"], "ner_tags": ["B-X"]})"
               "\n";
  }
  for (const auto& [name, text] : {std::pair{"a.conll", lines}, {"a.jsonl", records}}) {
    int signs = 0;
    const progress::Listener listener([&] { ++signs; });
    const TaggedText read_text = read(name, text);
    EXPECT_GE(signs, 2) << name;
    signs = 0;
    discover_tags(read_text);
    EXPECT_GE(signs, 2) << name;
  }
}

TEST_F(TaggedTest, StaysWithinItsBudget) {
  for (const std::string line :
       {"a O\n\n", "a\n\n", "a\tO\n \n", "a O\n", "\n", "x", "a \xE2\x80\x83\n"}) {
    std::string text;
    for (int i = 0; i < 200'000; ++i) text += line;
    write_file_atomically(folder_ / "a.conll", text);
    for (const bool has_tags : {true, false})
      testing::within_budget(text.size(), line, [&] {
        read_tagged_text(folder_ / "a.conll", {.has_tags = has_tags, .bad = BadRecords::skip});
      });
  }
}

TEST_F(TaggedTest, BlanksBehindATagAreNotPartOfIt) {
  for (const auto& [name, text] :
       {std::pair{"a.conll", "EU\tB-ORG \t\r\nx\tO\xC2\xA0\r\n"},
        {"a.tsv", "EU B-ORG\t\nx O \n\xC2\xA0\n"},
        {"a.jsonl", R"({"tokens": ["EU", "x"], "ner_tags": ["B-ORG \r", "O\u00a0"]})"},
        {"a.json", R"([{"tokens": ["EU", "x"], "ner_tags": ["B-ORG ", "O\t"]}])"},
        {"a.csv", "tokens,ner_tags\nEU x,\"B-ORG O \t\"\n"}}) {
    const TaggedText read_text = read(name, text);
    ASSERT_EQ(read_text.sentences.size(), 1u) << name;
    EXPECT_EQ(read_text.sentences[0].words, Words({"EU", "x"})) << name;
    EXPECT_EQ(read_text.sentences[0].tags, Words({"B-ORG", "O"})) << name;
  }
}

TEST_F(TaggedTest, ReadsJsonLines) {
  const TaggedText text = read("a.jsonl", R"({"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]})"
                                          "\n"
                                          R"({"tokens": ["c"], "ner_tags": ["10"]})"
                                          "\n"
                                          R"({"tokens": ["c"], "ner_tags": ["9"]})");
  ASSERT_EQ(text.sentences.size(), 3u);
  EXPECT_EQ(text.sentences[0].tags, Words({"O", "B-X"}));
  EXPECT_EQ(discover_tags(text).names(), Words({"10", "9", "B-X", "O"}));
  const TaggedText other =
      read("b.jsonl", R"({"w": ["a"], "t": [1]})", {.words_field = "w", .tags_field = "t"});
  EXPECT_EQ(other.sentences[0].tags, Words({"1"}));
}

// The cases are from tools/golden/make_records.py.
TEST_F(TaggedTest, TakesWordsAndTagsAsRunNer) {
  for (const json& one :
       json::parse(read_text_file(testing::golden_path("records.json"))).at("uses")) {
    if (one["use"] != "words" && one["use"] != "tags") continue;
    SCOPED_TRACE(one.dump());
    const bool has_tags = one["use"] == "tags";
    const TaggedTextOptions options{
        .has_tags = has_tags, .words_field = has_tags ? "t" : "v", .tags_field = "v"};
    if (one["values"].is_null()) {
      std::string problem;
      try {
        read(one["name"], one["text"], options);
      } catch (const Error& error) {
        problem = error.what();
      }
      EXPECT_THAT(problem, HasSubstr("a.jsonl, line 1: 'v' holds "));
      continue;
    }
    const TaggedText text = read(one["name"], one["text"], options);
    const json& expected = has_tags ? one["values"] : one["values"][0];
    EXPECT_EQ(has_tags ? discover_tags(text).names() : text.sentences[0].words,
              expected.get<Words>());
  }
  EXPECT_THAT(error_of("a.jsonl", R"({"tokens": ["a", null], "ner_tags": ["O", "B"]})"),
              HasSubstr("a.jsonl, line 1: 'tokens' holds null, not a text"));
  EXPECT_THAT(error_of("a.jsonl", R"({"tokens": ["a"], "ner_tags": [""]})"),
              HasSubstr("a.jsonl, line 1: 'ner_tags' holds an empty tag"));
  EXPECT_THAT(error_of("a.jsonl", ""), HasSubstr("a.jsonl is empty: it has no record"));
}

// `datasets` converts [0, 1.0] to floating-point numbers, and run_ner sorts 0 and true as one
// class.
TEST_F(TaggedTest, TagsAreOfOneType) {
  const auto record = [](const std::string& tags) {
    return R"({"tokens": ["a", "b"], "ner_tags": [)" + tags + "]}\n";
  };
  EXPECT_THAT(error_of("a.jsonl", record("0, true")),
              HasSubstr("a.jsonl, line 1: 'ner_tags' holds 0 and true, not values of one type"));
  EXPECT_THAT(error_of("a.jsonl", record("0, 1.0")), HasSubstr("holds 0 and 1.0"));
  for (const char* other : {"false, true", "0.0, 1.0", "\"0\", \"1\""})
    EXPECT_THAT(error_of("a.jsonl", record("0, 1") + record(other)),
                HasSubstr("a.jsonl, line 2: 'ner_tags' holds "));
  const TaggedText text = read("a.jsonl", record("0, 1") + record("0, true") + record("1, 2.0"),
                               {.bad = BadRecords::skip});
  EXPECT_EQ(text.skipped, 2);
  EXPECT_EQ(discover_tags(text).names(), Words({"0", "1"}));
}

TEST_F(TaggedTest, AnArrayOfListsIsRefusedAsSuch) {
  EXPECT_THAT(error_of("a.json", "[[1, 2]]"),
              HasSubstr("a.json: its records are no objects, so that none has the field 'tokens'"));
}

TEST_F(TaggedTest, RecordsWithoutWordsStayWithinTheBudget) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "{\"b\":1}\n";
  write_file_atomically(folder_ / "a.jsonl", text);
  testing::within_budget(text.size(), "no words",
                         [&] { read_tagged_text(folder_ / "a.jsonl", {.bad = BadRecords::skip}); });
}

TEST_F(TaggedTest, ReadsTablesOfSentences) {
  const TaggedText text = read("a.csv", "words,tags\n\"a  b\",O B-X\nc,O\n",
                               {.words_field = "words", .tags_field = "tags"});
  ASSERT_EQ(text.sentences.size(), 2u);
  EXPECT_EQ(text.sentences[0].words, Words({"a", "b"}));
  EXPECT_EQ(text.sentences[0].tags, Words({"O", "B-X"}));
  write_file_atomically(folder_ / "a.conll", "\xEF\xBB\xBF-DOCSTART- O\n\r\nEU NNP B-ORG\r\n");
  EXPECT_EQ(first_word_columns(folder_ / "a.conll"), Words({"EU", "NNP", "B-ORG"}));
  write_file_atomically(folder_ / "a.conll", "\n");
  EXPECT_TRUE(first_word_columns(folder_ / "a.conll").empty());
}

TEST_F(TaggedTest, NamesTheBadLineOrLeavesItsSentenceOut) {
  EXPECT_THAT(error_of("a.txt", "a O\n\nb O\nc\n"),
              HasSubstr("a.txt, line 4: 'c' is not a word and its tag"));
  EXPECT_THAT(error_of("a.txt", "a\tO\nb\t\n"), HasSubstr("a.txt, line 2"));
  EXPECT_LT(error_of("a.txt", std::string(1'000'000, 'c') + "\n").size(), 1000U);
  EXPECT_THAT(error_of("a.txt", "a O\n\xFF O\n"), HasSubstr("a.txt, line 2"));
  EXPECT_THAT(error_of("a.jsonl", R"({"tokens": ["a"], "ner_tags": ["O", "O"]})"),
              HasSubstr("a.jsonl, line 1: 1 words but 2 tags"));
  EXPECT_THAT(error_of("a.jsonl", R"({"tokens": "a b", "ner_tags": ["O", "O"]})"),
              HasSubstr("not a list"));
  EXPECT_THAT(error_of("a.txt", "\n\n"), HasSubstr("no sentence that can be used"));
  using namespace std::string_literals;
  EXPECT_THAT(error_of("a.txt", "a\0 \0O\0\n\0"s), HasSubstr("iconv -f UTF-16LE -t UTF-8"));
  const TaggedText text = read("a.txt", "a O\nb\nc O\n\nd O\n\ne\n", {.bad = BadRecords::skip});
  ASSERT_EQ(text.sentences.size(), 1u);
  EXPECT_EQ(text.sentences[0].words, Words({"d"}));
  EXPECT_EQ(text.skipped, 2);
  EXPECT_THAT(text.first_skipped, HasSubstr("line 2"));
  const TaggedText bare = read("a.txt", "a\nb x\n", {.has_tags = false});
  EXPECT_EQ(bare.sentences[0].words, Words({"a", "b"}));
  EXPECT_TRUE(bare.sentences[0].tags.empty());
}

TEST_F(TaggedTest, LabelsEqualHuggingFaces) {
  const json golden = json::parse(read_text_file(testing::golden_path("tasks.json"))).at("tagged");
  for (const std::string name : {"word_piece", "roberta"}) {
    const json& expected = golden.at(name);
    const auto text = std::make_shared<TaggedText>();
    for (const json& row : expected["sentences"])
      text->sentences.push_back({row["words"], row["tags"], "here"});
    const LabelSet labels = discover_tags(*text);
    EXPECT_EQ(labels.names(), expected["names"].get<Words>());
    const auto tokenizer = load_tokenizer(testing::golden_path("tokenizer/" + name + ".json"));
    for (const bool all : {false, true}) {
      const TaggedDataset data(
          text, tokenizer,
          {.labels = labels, .label_all_tokens = all, .max_seq_length = expected["max_length"]});
      for (std::int64_t i = 0; i < data.size(); ++i) {
        const json& row = expected["sentences"][static_cast<std::size_t>(i)];
        EXPECT_EQ(data.get(i).input_ids, row["ids"].get<Ids>()) << name << " " << row;
        EXPECT_EQ(data.get(i).labels, row[all ? "all" : "first"].get<Ids>()) << name << " " << row;
        std::vector<std::int64_t> first;  // the token to which run_ner assigns a word's tag
        const auto labels_of_first = row["first"].get<Ids>();
        for (std::size_t t = 0; t < labels_of_first.size(); ++t)
          if (labels_of_first[t] != kIgnoreLabel) first.push_back(static_cast<std::int64_t>(t));
        EXPECT_EQ(data.first_pieces(i), first) << name << " " << row;
      }
    }
  }
}

TEST_F(TaggedTest, FollowsTheModelsOrderAndRefusesOtherTags) {
  const auto text = std::make_shared<TaggedText>(read("a.txt", "God B-PER\nsaid O\n"));
  const auto tokenizer = load_tokenizer(testing::golden_path("tokenizer/word_piece.json"));
  const LabelSet labels({"B-PER", "O"});
  const TaggedDataset data(text, tokenizer, {.labels = labels, .model_ids = {7, 4}});
  EXPECT_EQ(data.get(0).labels.at(1), 7);
  EXPECT_EQ(data.get(0).labels.front(), kIgnoreLabel);
  EXPECT_THROW(data.get(1), Error);
  try {
    const TaggedDataset refused(text, tokenizer, {.labels = LabelSet({"O", "B-LOC"})});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("a.txt, line 1: the label is 'B-PER', none of the 2 classes"));
  }
  const auto bare = std::make_shared<TaggedText>(read("b.txt", "God\n", {.has_tags = false}));
  const Ids none = TaggedDataset(bare, tokenizer, {.labels = labels}).get(0).labels;
  EXPECT_EQ(std::count(none.begin(), none.end(), kIgnoreLabel),
            static_cast<std::int64_t>(none.size()));
}

TEST_F(TaggedTest, TagsAreTakenWhereThereIsALabel) {
  const LabelSet names({"O", "B-X"});
  const Ids labels = {-100, 1, -100, 0, -100}, classes = {1, 1, 0, 1, 0};
  EXPECT_EQ(tags_where_labelled(classes, labels, names), Words({"B-X", "B-X"}));
  EXPECT_EQ(tags_where_labelled(labels, labels, names), Words({"B-X", "O"}));
  EXPECT_THROW(tags_where_labelled(Ids{1}, labels, names), Error);
}

}  // namespace
}  // namespace shoal
