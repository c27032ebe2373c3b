// The part of a training file's rows that validates.
#include <algorithm>
#include <memory>
#include <vector>

#include <gmock/gmock.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/command/task_data.h"

namespace shoal::command {
namespace {

struct Numbers final : Dataset {
  explicit Numbers(std::int64_t count) : count_(count) {}
  std::int64_t size() const override { return count_; }
  Sample get(std::int64_t index) const override {
    return {.input_ids = {static_cast<std::int32_t>(index)}};
  }
  std::int64_t count_;
};

struct Parts {
  std::vector<std::int32_t> training, validation;
  std::vector<std::string> notices;
};

Parts split(std::int64_t count, double percentage) {
  DataArguments data;
  data.train_file = "rows.csv";
  data.validation_split_percentage = percentage;
  Parts parts;
  const SplitRows rows = split_rows(std::make_shared<Numbers>(count), data, parts.notices);
  for (std::int64_t i = 0; i < rows.training->size(); ++i)
    parts.training.push_back(rows.training->get(i).input_ids[0]);
  for (std::int64_t i = 0; i < rows.validation->size(); ++i)
    parts.validation.push_back(rows.validation->get(i).input_ids[0]);
  return parts;
}

TEST(SplitRows, EachRowIsInOnePart) {
  for (const std::int64_t count : {2, 3, 10, 101, 1000}) {
    const Parts parts = split(count, 10);
    EXPECT_EQ(std::ssize(parts.validation), std::max<std::int64_t>(1, (count + 5) / 10)) << count;
    EXPECT_TRUE(std::ranges::is_sorted(parts.training));
    EXPECT_TRUE(std::ranges::is_sorted(parts.validation));
    std::vector<std::int32_t> all = parts.training;
    all.insert(all.end(), parts.validation.begin(), parts.validation.end());
    std::ranges::sort(all);
    ASSERT_EQ(std::ssize(all), count);
    for (std::int64_t i = 0; i < count; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], i);
  }
}

// In a file that is sorted by class, each tenth of the file validates about as much as the others.
TEST(SplitRows, RowsComeFromTheWholeFile) {
  const Parts parts = split(10'000, 20);
  std::vector<int> by_tenth(10);
  for (const std::int32_t row : parts.validation) ++by_tenth[static_cast<std::size_t>(row / 1000)];
  EXPECT_THAT(by_tenth, ::testing::Each(::testing::AllOf(::testing::Gt(140), ::testing::Lt(260))));
}

TEST(SplitRows, IsTheSameInEveryRunAndLogged) {
  const Parts parts = split(12, 25);
  EXPECT_EQ(parts.validation, split(12, 25).validation);
  EXPECT_THAT(parts.notices,
              ::testing::ElementsAre("rows.csv: 9 rows train and 3 validate "
                                     "(validation_split_percentage 25), drawn at random, the same "
                                     "in every run"));
}

TEST(SplitRows, LeavesRowsToTrain) {
  for (const auto& [count, percentage] : {std::pair{1, 10.0}, {2, 90.0}, {0, 10.0}}) {
    try {
      split(count, percentage);
      FAIL() << count;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("leave none to train"));
    }
  }
}

}  // namespace
}  // namespace shoal::command
