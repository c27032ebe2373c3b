// Reading a checkpoint takes time and memory proportional to the size of its files,
// whatever the files claim.
#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"

#include <fstream>

#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/inspect.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/checkpoint/tensor_shard.h"
#include "shoal/train/checkpoint/trainer_state.h"

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::within_budget;

// Commit f990d27 walked 2^40 rows for this file.
TEST(CheckpointBudget, AShardOf300BytesThatSaysManyRows) {
  constexpr std::int64_t kRows = std::int64_t{1} << 40;
  const testing::TemporaryDirectory directory;
  const std::vector<float> held(4, 1.0F);
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    TensorShard tensor = whole_tensor("w", {kRows, 1}, DType::f32);
    tensor.begin = begin, tensor.end = end;
    return tensor;
  };
  write_shard(directory.path(), 0, 1,
              std::vector<ShardData>{{part(8, 12), ConstView(held.data(), {4}, DType::f32)}}, "s");
  EXPECT_THAT(
      within_budget(300, "one column", [&] { (void)ShardedCheckpoint::open(directory.path()); }),
      HasSubstr("elements [0, 8) are in no part"));
  TensorShard striped = part(kRows - 3, kRows);
  striped.whole = {kRows, 2};
  EXPECT_EQ(
      within_budget(300, "half of the columns", [&] { EXPECT_EQ(runs_of(striped).size(), 3U); }),
      "");
  json description = to_json(part(0, 4));
  description["whole"] = {kRows, kRows};
  EXPECT_THAT(within_budget(300, "overflow", [&] { (void)shard_from_json(description, "f"); }),
              HasSubstr("overflows"));
  description = to_json(part(0, 4));
  for (int i = 0; i < 100'000; ++i) description["pieces"].push_back(description["pieces"][0]);
  const std::size_t bytes = description.dump().size();
  EXPECT_THAT(within_budget(bytes, "pieces", [&] { (void)shard_from_json(description, "f"); }),
              HasSubstr("more than 256"));
}

TEST(CheckpointBudget, DescriptionsOfOtherTypes) {
  const json good = to_json(whole_tensor("w", {2, 3}, DType::f32));
  EXPECT_EQ(shard_from_json(good, "f").end, 6);
  for (const auto& [field, value] : good.items())
    for (const json& other :
         {json(), json("x"), json(-1), json(1.5), json(UINT64_MAX), json(1e300), json::array(),
          json::object(), json(true), json{json::array({1})}, json(std::vector<int>(100'000, 1))}) {
      json description = good;
      description[field] = other;
      const std::string problem =
          within_budget(description.dump().size(), field, [&, &name = field] {
            const TensorShard held = shard_from_json(description, "f");
            EXPECT_TRUE(name == "name" || name == "end" || name == "begin") << other;
            (void)tiling_problem(std::vector{held});
          });
      EXPECT_EQ(problem.find("json.exception"), std::string::npos) << problem;
      EXPECT_LT(problem.size(), 400U) << field;
    }
  json beyond = good;
  beyond["pieces"][0] = {{2, 3}, {INT64_MAX, 0}, {0, 0}};
  EXPECT_THAT(within_budget(200, "a corner", [&] { (void)shard_from_json(beyond, "f"); }),
              HasSubstr("does not lie within"));
  json large = good;
  large["whole"] = large["local"] = {std::int64_t{1} << 62};
  EXPECT_THAT(within_budget(200, "bytes", [&] { (void)shard_from_json(large, "f"); }),
              HasSubstr("more than 2^63 bytes"));
}

// Tables and lists of names never grow beyond what the files contain.
TEST(CheckpointBudget, InspectionIsBounded) {
  const testing::TemporaryDirectory directory;
  const auto described = [&](const json& header) {
    std::string text = header.dump(), file;
    for (int i = 0; i < 8; ++i) file += static_cast<char>((text.size() >> (8 * i)) & 0xff);
    std::ofstream(directory / "model.safetensors") << file << text;
    std::string shown;
    within_budget(text.size(), "inspection",
                  [&] { shown = describe(inspect_checkpoint(directory.path(), false), true); });
    EXPECT_LT(shown.size(), 4 * text.size() + 10'000);
    return shown;
  };
  const auto entry = [](const json& shape) {
    return json{{"dtype", "U8"}, {"shape", shape}, {"data_offsets", {0, 0}}};
  };
  json names = {{std::string(300'000, 'n'), entry({0})}};
  for (int i = 0; i < 5'000; ++i) names["t" + std::to_string(i)] = entry({0});
  EXPECT_THAT(described(names), HasSubstr("nnn..."));
  std::vector<std::int64_t> sizes(100'000, std::int64_t{1} << 40);
  sizes.back() = 0;
  EXPECT_THAT(described({{"w", entry(sizes)}}), HasSubstr(", ... 100000 sizes]"));
  std::ofstream(directory / "shard-00000-of-99999.safetensors") << "x";
  const CheckpointContents missing = inspect_checkpoint(directory.path(), false);
  EXPECT_THAT(missing.problems.front(), HasSubstr("and 99990 more"));
  EXPECT_LT(describe(missing, true).size(), 2'000U);
}

TEST(CheckpointBudget, TrainerStates) {
  json row = {{"step", 1}};
  for (int i = 0; i < 50'000; ++i) row[std::to_string(i)] = i;
  json state = json(TrainerState{}.to_json());
  state["log_history"] = json::array({row});
  const testing::TemporaryDirectory directory;
  const std::string text = state.dump();
  std::ofstream(directory / "trainer_state.json") << text;
  EXPECT_EQ(within_budget(text.size(), "one long row",
                          [&] { (void)read_trainer_state(directory.path()).to_json(); }),
            "");
}

TEST(CheckpointBudget, Markers) {
  const testing::TemporaryDirectory directory;
  json files = json::array();
  for (int i = 0; i < 50'000; ++i)
    files.push_back({{"name", "none"}, {"bytes", 1}, {"sha256", "0"}});
  const std::string text =
      json{{"format", "shoal-checkpoint-1"}, {"step", 1}, {"files", files}}.dump();
  std::ofstream(directory / "COMPLETE") << text;
  within_budget(text.size(), "files", [&] { (void)checkpoint_problem(directory.path(), false); });
}

}  // namespace
}  // namespace shoal
