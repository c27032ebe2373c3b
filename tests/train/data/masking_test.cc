#include "shoal/train/data/masking.h"

#include <filesystem>
#include <map>
#include <set>

#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

std::shared_ptr<const Tokenizer> tokenizer_of(const std::string& name) {
  return load_tokenizer(testing::golden_path("tokenizer/" + name + ".json"));
}

// [CLS] words [SEP], 20 to 59 tokens, from ids that are not special.
class Words final : public Dataset {
 public:
  Words(const Tokenizer& tokenizer, std::int64_t size, std::int64_t ids = 500)
      : tokenizer_(tokenizer), size_(size), ids_(ids) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    sample.input_ids.push_back(*tokenizer_.roles().cls);
    for (std::int64_t t = 0; t < 18 + index * 7 % 40; ++t)
      sample.input_ids.push_back(static_cast<std::int32_t>(5 + (index * 31 + t * 17) % ids_));
    sample.input_ids.push_back(*tokenizer_.roles().sep);
    return sample;
  }

 private:
  const Tokenizer& tokenizer_;
  std::int64_t size_, ids_;
};

struct Masked {
  Ids ids, labels;
  bool operator==(const Masked&) const = default;
};

class MaskingTest : public ::testing::Test {
 protected:
  struct Way {
    std::int64_t ranks = 1, batch = 4, epoch = 0;
    int workers = 0;
    MaskingOptions options = {};
  };
  // Every sample of an epoch without padding, keyed by its ordinal.
  std::map<std::int64_t, Masked> masked(const Way& way) {
    std::map<std::int64_t, Masked> result;
    for (std::int64_t rank = 0; rank < way.ranks; ++rank) {
      Loader loader(
          words_, std::make_shared<MaskingCollator>(*tokenizer_, way.options),
          std::make_unique<DistributedSampler>(
              words_->size(), DistributedSamplerOptions{.ranks = way.ranks, .rank = rank}),
          *memory_, {.batch_size = way.batch, .num_workers = way.workers});
      loader.seek({way.epoch, 0});
      for (std::int64_t i = 0; const auto batch = loader.next();) {
        const std::int64_t columns = batch->input_ids.shape()[1];
        for (std::int64_t row = 0; row < batch->rows; ++row, ++i) {
          const auto sample = loader.sampler().index(i);
          const auto length = static_cast<std::int64_t>(words_->get(sample).input_ids.size());
          const auto* ids = batch->input_ids.const_data<std::int32_t>() + row * columns;
          const auto* labels = batch->labels.const_data<std::int32_t>() + row * columns;
          EXPECT_EQ(std::count(labels + length, labels + columns, kIgnoreLabel), columns - length);
          result[batch->ordinals.first + row * batch->ordinals.stride] = {
              {ids, ids + length}, {labels, labels + length}};
        }
      }
    }
    return result;
  }
  std::string refusal(const std::string& tokenizer, const MaskingOptions& options) {
    try {
      MaskingCollator(*tokenizer_of(tokenizer), options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  std::unique_ptr<MemoryResource> memory_ = make_host_memory();
  std::shared_ptr<const Tokenizer> tokenizer_ = tokenizer_of("word_piece");
  std::shared_ptr<Words> words_ = std::make_shared<Words>(*tokenizer_, 60);
};

TEST_F(MaskingTest, DependsOnNeitherRanksNorWorkersNorBatches) {
  const auto expected = masked({});
  ASSERT_EQ(expected.size(), 60u);
  for (const Way& way : {Way{.batch = 7}, Way{.workers = 3},
                         Way{.ranks = 2, .batch = 3, .workers = 2}, Way{.ranks = 4, .batch = 1}})
    EXPECT_EQ(masked(way), expected);
  EXPECT_EQ(masked({.options = {.pad_to_multiple_of = 64}}), expected);
  EXPECT_NE(masked({.options = {.seed = 43}}), expected);
}

// The order is not shuffled, so that both epochs have the same samples at the same positions.
TEST_F(MaskingTest, MasksOtherTokensInEveryEpochAndPosition) {
  const MaskingCollator collator(*tokenizer_, {});
  const std::vector<Sample> same(2, words_->get(3));
  std::set<Ids> seen;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    for (std::int64_t first : {std::int64_t{0}, std::int64_t{10}, std::int64_t{1} << 33}) {
      const Batch batch = collator.collate_at({{first, 5}, epoch}, same, *memory_);
      const auto* labels = batch.labels.const_data<std::int32_t>();
      const std::int64_t columns = batch.labels.shape()[1];
      for (std::int64_t row = 0; row < 2; ++row)
        seen.insert(Ids(labels + row * columns, labels + (row + 1) * columns));
    }
  }
  EXPECT_EQ(seen.size(), 24u);
}

TEST_F(MaskingTest, HidesTheSharesThatBertDoes) {
  words_ = std::make_shared<Words>(*tokenizer_, 1500);
  double tokens = 0, hidden = 0, masks = 0, same = 0;
  std::set<std::int32_t> random;
  for (const auto& [ordinal, sample] : masked({.batch = 50})) {
    EXPECT_EQ(sample.labels.front(), kIgnoreLabel);
    EXPECT_EQ(sample.labels.back(), kIgnoreLabel);
    EXPECT_EQ(sample.ids.front(), *tokenizer_->roles().cls);
    for (std::size_t t = 1; t + 1 < sample.ids.size(); ++t) {
      ++tokens;
      if (sample.labels[t] == kIgnoreLabel) continue;
      ++hidden;
      EXPECT_FALSE(tokenizer_->is_special(sample.labels[t]));
      if (sample.ids[t] == *tokenizer_->roles().mask)
        ++masks;
      else if (sample.ids[t] == sample.labels[t])
        ++same;
      else
        random.insert(sample.ids[t]);
    }
  }
  EXPECT_NEAR(hidden / tokens, 0.15, 0.006);  // four standard deviations
  EXPECT_NEAR(masks / hidden, 0.8, 0.018);
  EXPECT_NEAR(same / hidden, 0.1, 0.014);
  EXPECT_GT(random.size(), 400u);  // of 600 and some
  EXPECT_LT(*random.rbegin(), tokenizer_->vocab_size());
  EXPECT_GE(*random.begin(), 0);
}

class WholeWords : public MaskingTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(WholeWords, AreHiddenWholeOrNot) {
  const std::string name = GetParam();
  tokenizer_ = tokenizer_of(name);
  words_ = std::make_shared<Words>(*tokenizer_, 60, tokenizer_->vocab_size() - 70);
  const bool wordpiece = name == "word_piece";
  const std::string mark = wordpiece ? "##" : name == "roberta" ? "Ġ" : "▁";
  const auto is_piece = [&](std::int32_t id) {
    return tokenizer_->id_to_token(id)->starts_with(mark) == wordpiece;
  };
  double words = 0, hidden = 0, longer = 0;
  for (const auto& [ordinal, sample] : masked({.options = {.whole_words = true}})) {
    // The original token: the label, or the id if the position was not masked.
    const auto original = [&](std::size_t t) {
      return sample.labels[t] == kIgnoreLabel ? sample.ids[t] : sample.labels[t];
    };
    for (std::size_t t = 1; t + 1 < sample.ids.size(); ++t) {
      const bool is_hidden = sample.labels[t] != kIgnoreLabel;
      EXPECT_FALSE(is_hidden && tokenizer_->is_special(original(t)));
      if (tokenizer_->is_special(original(t))) continue;
      if (!tokenizer_->is_special(original(t - 1)) && is_piece(original(t))) {
        EXPECT_EQ(is_hidden, sample.labels[t - 1] != kIgnoreLabel)
            << "sample " << ordinal << ", " << t;
        ++longer;
      } else {
        ++words;
        hidden += is_hidden;
      }
    }
  }
  EXPECT_GT(longer, 100);
  EXPECT_NEAR(hidden / words, 0.15, 0.05);
}
INSTANTIATE_TEST_SUITE_P(Masking, WholeWords,
                         ::testing::Values("word_piece", "roberta", "sentence_piece/albert"));

// GPT-2's vocabulary contains "####", and a WordPiece vocabulary may contain the letter Ġ.
TEST_F(MaskingTest, FindsWordsByTheMarkThatMostTokensHave) {
  const testing::TemporaryDirectory folder;
  std::filesystem::create_directories(folder / "wordpiece");
  std::filesystem::create_directories(folder / "bytes");
  write_file_atomically(folder / "wordpiece/vocab.txt",
                        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##a\n##b\nĠ\n");
  write_file_atomically(folder / "bytes/vocab.json",
                        R"({"<pad>": 0, "<unk>": 1, "<s>": 2, "</s>": 3, "<mask>": 4, "Ġa": 5,
                            "a": 6, "####": 7, "Ġ": 8, "#": 9, "##": 10})");
  write_file_atomically(folder / "bytes/merges.txt", "#version: 0.2\nĠ a\n# #\n## ##\n");
  for (const char* kind : {"wordpiece", "bytes"}) {
    const MaskingCollator collator(*load_tokenizer(folder / kind),
                                   {.probability = 0.5, .whole_words = true});
    const std::vector<Sample> samples(100, Sample{.input_ids = {2, 5, 6, 7, 5, 3}});
    const Batch batch = collator.collate(samples, *memory_);
    int apart = 0;
    for (std::int64_t row = 0; row < batch.rows; ++row) {
      const auto* labels = batch.labels.const_data<std::int32_t>() + 6 * row;
      EXPECT_EQ(labels[1] < 0, labels[2] < 0) << kind;
      EXPECT_EQ(labels[2] < 0, labels[3] < 0) << kind;
      apart += (labels[3] < 0) != (labels[4] < 0);
    }
    EXPECT_GT(apart, 20) << kind;
  }
}

TEST_F(MaskingTest, LeavesWhatIsNotAttended) {
  const MaskingCollator collator(*tokenizer_,
                                 {.probability = 1, .mask_share = 1, .random_share = 0});
  const std::vector<Sample> samples = {{.input_ids = {2, 10, 11, 12, 3},
                                        .labels = {1, 1, 1, 1, 1},
                                        .attention_mask = {1, 1, 0, 1, 1}}};
  const Batch batch = collator.collate(samples, *memory_);
  const auto* labels = batch.labels.const_data<std::int32_t>();
  EXPECT_EQ(Ids(labels, labels + 5), Ids({-100, 10, -100, 12, -100}));
  const auto* ids = batch.input_ids.const_data<std::int32_t>();
  EXPECT_EQ(Ids(ids, ids + 5), Ids({2, 4, 11, 4, 3}));
  const std::vector<Sample> bad = {{.input_ids = {2, 100000}}};
  EXPECT_THROW(collator.collate(bad, *memory_), Error);
}

TEST_F(MaskingTest, RefusesUnsuitableTokenizers) {
  EXPECT_THAT(refusal("plain", {}), HasSubstr("no mask token"));
  const testing::TemporaryDirectory folder;
  write_file_atomically(folder / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##\n");
  try {
    MaskingCollator(*load_tokenizer(folder.path()), {.whole_words = true});
    ADD_FAILURE() << "whole words of single letters";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no token begins with '##', '▁' or 'Ġ'"));
  }
  EXPECT_THAT(refusal("word_piece", {.probability = 1.5}), HasSubstr("mlm_probability is 1.5"));
  EXPECT_THAT(refusal("word_piece", {.mask_share = 0.9, .random_share = 0.2}),
              HasSubstr("at most 1"));
  EXPECT_EQ(refusal("roberta", {}), "no error");
}

}  // namespace
}  // namespace shoal
