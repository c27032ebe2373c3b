#include "shoal/train/data/batch.h"

#include <cmath>

#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

template <typename T>
std::vector<T> values(const Tensor& tensor) {
  const T* data = tensor.const_data<T>();
  return {data, data + tensor.count()};
}

class PaddingCollatorTest : public ::testing::Test {
 protected:
  std::unique_ptr<MemoryResource> memory_ = make_host_memory();
};

TEST_F(PaddingCollatorTest, EqualLengthsNeedNoMaskAndShareLabels) {
  const std::vector<Sample> samples = {{.input_ids = {1, 2, 3}}, {.input_ids = {4, 5, 6}}};
  const Batch batch = PaddingCollator().collate(samples, *memory_);
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.input_ids.shape(), (Shape{2, 3}));
  EXPECT_EQ(values<std::int32_t>(batch.input_ids), (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(batch.labels.storage(), batch.input_ids.storage());
  EXPECT_FALSE(batch.attention_mask.defined());
  EXPECT_FALSE(batch.token_type_ids.defined());
}

TEST_F(PaddingCollatorTest, PadsToTheLongestAndItsMultiple) {
  const std::vector<Sample> samples = {
      {.input_ids = {1}, .labels = {7}},
      {.input_ids = {4, 5, 6}, .attention_mask = {1, 0, 1}, .token_type_ids = {0, 1, 1}}};
  const Batch batch = PaddingCollator(9, 4).collate(samples, *memory_);
  EXPECT_EQ(values<std::int32_t>(batch.input_ids),
            (std::vector<std::int32_t>{1, 9, 9, 9, 4, 5, 6, 9}));
  EXPECT_EQ(values<std::int32_t>(batch.labels),
            (std::vector<std::int32_t>{7, -100, -100, -100, 4, 5, 6, -100}));
  EXPECT_EQ(values<std::uint8_t>(batch.attention_mask),
            (std::vector<std::uint8_t>{1, 0, 0, 0, 1, 0, 1, 0}));
  EXPECT_EQ(values<std::int32_t>(batch.token_type_ids),
            (std::vector<std::int32_t>{0, 0, 0, 0, 0, 1, 1, 0}));
}

// Without labels a language model learns its own tokens. Padding is not a target.
TEST_F(PaddingCollatorTest, PaddingIsNotALabel) {
  const std::vector<Sample> samples = {{.input_ids = {1}}, {.input_ids = {4, 5}}};
  const Batch batch = PaddingCollator(9, 2).collate(samples, *memory_);
  EXPECT_EQ(values<std::int32_t>(batch.labels), (std::vector<std::int32_t>{1, -100, 4, 5}));
}

TEST_F(PaddingCollatorTest, LabelsOfWholeSamples) {
  const PaddingCollator collator(0, 1, LabelsOf::sample);
  const std::vector<Sample> classes = {{.input_ids = {1, 2}, .labels = {3}}, {.input_ids = {1}}};
  const Batch of_classes = collator.collate(classes, *memory_);
  EXPECT_EQ(of_classes.labels.shape(), (Shape{2}));
  EXPECT_EQ(values<std::int32_t>(of_classes.labels), (std::vector<std::int32_t>{3, kIgnoreLabel}));

  // A sample's own labels are kept even if there are as many of them as tokens.
  const std::vector<Sample> answers = {{.input_ids = {1, 2}, .labels = {0, 1}},
                                       {.input_ids = {1, 2, 3}, .labels = {2, 2}}};
  const Batch of_answers = collator.collate(answers, *memory_);
  EXPECT_EQ(of_answers.labels.shape(), (Shape{2, 2}));
  EXPECT_EQ(values<std::int32_t>(of_answers.labels), (std::vector<std::int32_t>{0, 1, 2, 2}));

  const std::vector<Sample> scores = {{.input_ids = {1}, .values = {2.5F}}, {.input_ids = {1}}};
  const Batch of_scores = collator.collate(scores, *memory_);
  EXPECT_EQ(of_scores.labels.shape(), (Shape{2, 1}));
  EXPECT_EQ(of_scores.labels.dtype(), DType::f32);
  EXPECT_EQ(values<float>(of_scores.labels)[0], 2.5F);
  EXPECT_TRUE(std::isnan(values<float>(of_scores.labels)[1]));

  const std::vector<Sample> unlabelled = {{.input_ids = {1}}, {.input_ids = {1, 2}}};
  EXPECT_FALSE(collator.collate(unlabelled, *memory_).labels.defined());
}

TEST_F(PaddingCollatorTest, SecondSequencesHaveALengthOfTheirOwn) {
  const PaddingCollator collator(9, 4, LabelsOf::sequence, 3);
  const std::vector<Sample> pairs = {{.input_ids = {1, 2, 3}, .labels = {4, 5, 6, 7}},
                                     {.input_ids = {1}, .labels = {8}},
                                     {.input_ids = {2}}};
  const Batch batch = collator.collate(pairs, *memory_);
  EXPECT_EQ(batch.input_ids.shape(), (Shape{3, 4}));
  EXPECT_EQ(batch.labels.shape(), (Shape{3, 6}));
  EXPECT_EQ(values<std::int32_t>(batch.labels),
            (std::vector<std::int32_t>{4, 5, 6, 7, -100, -100, 8, -100, -100, -100, -100, -100,
                                       -100, -100, -100, -100, -100, -100}));
  const std::vector<Sample> sources = {{.input_ids = {1}}, {.input_ids = {1, 2}}};
  EXPECT_FALSE(collator.collate(sources, *memory_).labels.defined());
}

TEST_F(PaddingCollatorTest, RefusesLabelsOfOtherNumbers) {
  const PaddingCollator collator(0, 1, LabelsOf::sample);
  const auto message = [&](const std::vector<Sample>& samples) -> std::string {
    try {
      collator.collate(samples, *memory_);
    } catch (const Error& error) {
      return error.message();
    }
    return "no error";
  };
  EXPECT_EQ(message({{.input_ids = {1}},
                     {.input_ids = {1}, .labels = {1}},
                     {.input_ids = {1}, .labels = {1, 2}}}),
            "collate: sample 2 has 2 labels, but sample 1 has 1");
  EXPECT_EQ(message({{.input_ids = {1}, .labels = {1}}, {.input_ids = {1}, .values = {1}}}),
            "collate: of 2 samples some have labels and some have values");
  EXPECT_THROW(
      PaddingCollator().collate(std::vector<Sample>{{.input_ids = {1}, .values = {1}}}, *memory_),
      Error);
}

TEST_F(PaddingCollatorTest, RefusesSamplesThatDisagree) {
  const PaddingCollator collator;
  EXPECT_THROW(collator.collate({}, *memory_), Error);
  EXPECT_THROW(collator.collate(std::vector<Sample>{Sample{}}, *memory_), Error);
  try {
    collator.collate(std::vector<Sample>{{.input_ids = {1}}, {.input_ids = {1, 2}, .labels = {1}}},
                     *memory_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "collate: sample 1 has 2 input_ids but 1 labels");
  }
  EXPECT_THROW(PaddingCollator(0, 0), Error);
}

}  // namespace
}  // namespace shoal
