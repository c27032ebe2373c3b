// Texts as model inputs and lines of text, against Hugging Face (tools/golden/make_tasks.py);
// labels.
#include <optional>

#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/data/labels.h"
#include "shoal/train/data/line_dataset.h"
#include "shoal/train/data/model_input.h"
#include "shoal/train/data/prepare.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

json golden(const char* part) {
  return json::parse(read_text_file(testing::golden_path("tasks.json"))).at(part);
}

TEST(ModelInput, IsCutAsHuggingFaceCuts) {
  for (const json& row : golden("truncations"))
    EXPECT_EQ(longest_first({row[0], row[1]}, row[2]), (PairLengths{row[3], row[4]})) << row;
}

TEST(ModelInput, EqualsHuggingFaces) {
  for (const std::string name : {"word_piece", "roberta"}) {
    const auto tokenizer = load_tokenizer(testing::golden_path("tokenizer/" + name + ".json"));
    const json rows = golden("inputs").at(name);
    for (const json& row : rows) {
      const std::string first = row["first"];
      const std::string text = row["second"].is_null() ? "" : row["second"].get<std::string>();
      const std::string_view second = text;
      const Sample sample = model_input(
          *tokenizer, first, row["second"].is_null() ? nullptr : &second, row["max_length"]);
      EXPECT_EQ(sample.input_ids, row["ids"].get<Ids>()) << row;
      Ids types = row["types"];
      if (std::count(types.begin(), types.end(), 0) == static_cast<std::int64_t>(types.size()))
        types = {};
      EXPECT_EQ(sample.token_type_ids, types) << row;
    }
    EXPECT_THROW(model_input(*tokenizer, "x", nullptr, 2), Error);
  }
}

TEST(ModelInput, WindowsOverlapAndEndWithTheText) {
  using Spans = std::vector<TextSpan>;
  const auto windows = [](std::int64_t tokens, std::int64_t length, std::int64_t stride) {
    Spans all;
    for (std::int64_t i = 0; i < window_count(tokens, length, stride); ++i)
      all.push_back(window(tokens, length, stride, i));
    return all;
  };
  EXPECT_EQ(windows(10, 4, 1), Spans({{0, 4}, {3, 7}, {6, 10}}));
  EXPECT_EQ(windows(11, 4, 1), Spans({{0, 4}, {3, 7}, {6, 10}, {9, 11}}));
  EXPECT_EQ(windows(4, 4, 3), Spans({{0, 4}}));
  EXPECT_EQ(windows(5, 4, 3), Spans({{0, 4}, {1, 5}}));
  EXPECT_EQ(windows(0, 4, 0), Spans({{0, 0}}));
  EXPECT_THROW(windows(5, 4, 4), Error);
  EXPECT_THROW(windows(5, 0, 0), Error);
}

class LineTest : public ::testing::Test {
 protected:
  std::shared_ptr<const TokenFile> prepare(const std::string& text, bool special = true,
                                           bool drops = false) {
    write_file_atomically(folder_ / "a.txt", text);
    PrepareOptions options;
    options.inputs = {folder_ / "a.txt"};
    options.output_directory = folder_ / "out";
    options.add_special_tokens = special;
    options.keep_line_ends = false;
    options.drops_white_space = drops;
    return TokenFile::open(prepare_data(*tokenizer_, options).train.path);
  }
  testing::TemporaryDirectory folder_;
  std::shared_ptr<const Tokenizer> tokenizer_ =
      load_tokenizer(testing::golden_path("tokenizer/word_piece.json"));
};

TEST_F(LineTest, EveryLineWithTextIsASample) {
  const std::string line = "In the beginning God created the heaven and the earth";
  const auto file = prepare("God said\r\n\n  \n" + line + "\nearth");
  EXPECT_EQ(file->documents(), 5);
  const LineDataset lines(file, tokenizer_->sequence_template(), 6, 1000);
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines.get(0).input_ids, tokenizer_->encode("God said").ids);
  EXPECT_EQ(lines.get(1).input_ids, model_input(*tokenizer_, line, nullptr, 6).input_ids);
  EXPECT_EQ(lines.get(2).input_ids, tokenizer_->encode("earth").ids);
  EXPECT_THROW(lines.get(3), Error);
  EXPECT_THROW(LineDataset(file, tokenizer_->sequence_template(), 2, 0), Error);
  EXPECT_THROW(LineDataset(file, tokenizer_->sequence_template(), 6, 20), Error);
  EXPECT_THROW(LineDataset(prepare("\n\n"), tokenizer_->sequence_template(), 6, 0), Error);
}

// run_mlm keeps a line if "len(line) > 0 and not line.isspace()". A byte-level tokenizer
// has tokens for blanks.
TEST_F(LineTest, ALineOfWhiteSpaceIsNotASample) {
  tokenizer_ = load_tokenizer(testing::golden_path("tokenizer/plain.json"));
  const std::string text = " \xE2\x80\x83\x1C\n\none\n\t \r\n two\n";
  const auto samples = [&](bool drops) {
    return LineDataset(prepare(text, true, drops), tokenizer_->sequence_template(), 6, 0).size();
  };
  EXPECT_EQ(samples(true), 2);
  EXPECT_EQ(samples(false), 4);
}

// run_mlm without line_by_line joins lines with their special tokens and cuts them into blocks.
TEST_F(LineTest, BlocksAreLinesEndToEnd) {
  const auto file = prepare("God said\n\nearth and heaven\n");
  Ids all;
  for (const char* text : {"God said", "", "earth and heaven"}) {
    const Ids ids = tokenizer_->encode(text).ids;
    all.insert(all.end(), ids.begin(), ids.end());
  }
  const CausalLmDataset blocks(file, 5, 0);
  ASSERT_EQ(blocks.size(), static_cast<std::int64_t>(all.size()) / 5);
  for (std::int64_t i = 0; i < blocks.size(); ++i)
    EXPECT_EQ(blocks.get(i).input_ids, Ids(all.begin() + 5 * i, all.begin() + 5 * i + 5));
}

TEST_F(LineTest, SpecialTokensAndLineEndsAreTheCallersChoice) {
  const auto plain = load_tokenizer(testing::golden_path("tokenizer/plain.json"));
  tokenizer_ = plain;
  const auto file = prepare("one\r\ntwo\n", true);  // this tokenizer adds no special tokens
  Ids ids(static_cast<std::size_t>(file->tokens()));
  file->read(0, ids);
  EXPECT_EQ(plain->decode(ids), "onetwo");
}

TEST(Labels, AreDiscoveredInOrder) {
  EXPECT_EQ(LabelSet::discover({"b", "a", "b", "C"}).names(),
            std::vector<std::string>({"C", "a", "b"}));
  const LabelSet numbers = LabelSet::discover({"10", "9", "-1", "9"});
  EXPECT_EQ(numbers.names(), std::vector<std::string>({"-1", "9", "10"}));
  EXPECT_EQ(numbers.find("10"), 2);
  EXPECT_EQ(numbers.find("0"), std::nullopt);  // a label is not read as a class index
  EXPECT_EQ(LabelSet::discover({"10", "9", "x"}).names(),
            std::vector<std::string>({"10", "9", "x"}));
}

TEST(Labels, AreFoundByNameOrNumber) {
  const LabelSet labels({"entailment", "neutral"});
  EXPECT_EQ(labels.find("neutral"), 1);
  EXPECT_EQ(labels.find("0"), 0);
  EXPECT_EQ(labels.find("2"), std::nullopt);
  EXPECT_EQ(labels.find("-1"), std::nullopt);
  try {
    labels.need("neutrl", "a.tsv, line 3");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "a.tsv, line 3: the label is 'neutrl', none of the 2 classes (entailment, neutral)");
  }
  EXPECT_THROW(LabelSet({"a", "a"}), Error);
  EXPECT_THROW(LabelSet({"a", ""}), Error);
  EXPECT_THROW(labels.name(2), Error);
}

TEST(Labels, MayHaveAnotherOrderInAModel) {
  const LabelSet labels({"entailment", "neutral", "contradiction"});
  EXPECT_EQ(labels.ids_in(LabelSet({"CONTRADICTION", "NEUTRAL", "ENTAILMENT"})),
            std::vector<std::int32_t>({2, 1, 0}));
  EXPECT_EQ(LabelSet({"NEG", "Pos"}).ids_in(LabelSet({"pos", "neg"})),
            std::vector<std::int32_t>({1, 0}));
  EXPECT_EQ(labels.ids_in(LabelSet({"LABEL_0", "LABEL_1", "LABEL_2"})), std::nullopt);
  EXPECT_EQ(labels.ids_in(LabelSet({"neutral"})), std::nullopt);
}

}  // namespace
}  // namespace shoal
