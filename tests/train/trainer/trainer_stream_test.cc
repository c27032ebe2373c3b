// Training on a stream of shards, and the loader's costs in the log.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/train/checkpoint/checkpoint_directory.h"

namespace shoal::test {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryDirectory;

class ToyShard final : public Dataset {
 public:
  ToyShard(std::int64_t shard, std::int64_t size, double sleep_ms)
      : shard_(shard), size_(size), sleep_ms_(sleep_ms) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override {
    if (sleep_ms_ > 0)
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(sleep_ms_));
    Sample sample;
    auto x = static_cast<std::uint32_t>(7919 * shard_ + index + 1);
    for (int t = 0; t < 12; ++t) {
      x = x * 1664525U + 1013904223U;
      sample.input_ids.push_back(static_cast<std::int32_t>((x >> 16U) % kToyVocabulary));
    }
    return sample;
  }

 private:
  std::int64_t shard_, size_;
  double sleep_ms_;
};

// 41 samples in uneven shards, one of them empty.
class ToyShards final : public ShardSet {
 public:
  std::int64_t count() const override { return std::ssize(sizes_); }
  const std::string& name(std::int64_t shard) const override {
    return names_.at(static_cast<std::size_t>(shard));
  }
  std::shared_ptr<const Dataset> open(std::int64_t shard) const override {
    return std::make_shared<ToyShard>(shard, sizes_.at(static_cast<std::size_t>(shard)), 0);
  }

 private:
  std::vector<std::int64_t> sizes_ = {17, 0, 3, 1, 20};
  std::vector<std::string> names_ = {"a", "b", "c", "d", "e"};
};

RunOptions streaming(int ranks, std::int64_t buffer = 9) {
  return {.ranks = ranks, .prepare = [buffer](CausalLmTask&, TrainerParts& parts) {
            parts.train_dataset.reset();
            parts.train_shards = std::make_shared<ToyShards>();
            parts.shuffle_buffer = buffer;
          }};
}

TrainingArguments arguments_for(const std::string& output, int ranks) {
  TrainingArguments a = toy_arguments(output);
  a.per_device_train_batch_size = 6 / ranks;
  return a;
}

TEST(TrainerStream, ResumesToTheBit) {
  for (const int workers : {0, 3}) {
    TrainingArguments a = toy_arguments("");
    a.dataloader_num_workers = workers;
    a.gradient_accumulation_steps = 2;
    expect_resume_to_the_bit(a, streaming(1));
  }
  expect_resume_to_the_bit(arguments_for("", 2), streaming(2));
}

TEST(TrainerStream, RanksAndWorkersLearnTheSame) {
  const TemporaryDirectory output;
  const auto alone = run(arguments_for(output / "1", 1), streaming(1));
  auto a = arguments_for(output / "2", 2);
  a.dataloader_num_workers = 2;
  expect_close(run(a, streaming(2)).main.losses, alone.main.losses, 1e-4);
  expect_close(run(arguments_for(output / "3", 3), streaming(3)).main.losses, alone.main.losses,
               1e-4);
  const auto ordered = run(arguments_for(output / "4", 1), streaming(1, 0));
  EXPECT_NE(ordered.main.losses, alone.main.losses);
}

TEST(TrainerStream, ResumesOnOtherRanks) {
  const TemporaryDirectory output;
  const auto whole = run(arguments_for(output / "whole", 1), streaming(1));
  auto first = arguments_for(output / "broken", 3);
  first.save_strategy = Interval::steps;
  first.save_steps = 13;
  RunOptions stopped = streaming(3);
  stopped.stop_after = 13;
  run(first, stopped);
  auto second = arguments_for(output / "broken", 2);
  second.resume_from_checkpoint = "true";
  const auto rest = run(second, streaming(2));
  expect_close(rest.main.losses, {whole.main.losses.begin() + 13, whole.main.losses.end()}, 1e-3);
}

TEST(TrainerStream, ASignalLosesNoSample) {
  const TemporaryDirectory output;
  auto a = arguments_for(output / "whole", 2);
  const auto whole = run(a, streaming(2));
  a.output_dir = output / "broken";
  RunOptions stopped = streaming(2);
  stopped.signal_after = 17;
  run(a, stopped);
  a.resume_from_checkpoint = "true";
  const auto rest = run(a, streaming(2));
  EXPECT_EQ(rest.main.losses,
            std::vector<double>(whole.main.losses.begin() + 17, whole.main.losses.end()));
}

// The set has five shards. Rank 1 has an empty one and one with a single sample.
TEST(TrainerStream, RanksWithShardsOfTheirOwnResumeToTheBit) {
  const auto own = [] {
    RunOptions options = streaming(2);
    options.prepare = [prepare = options.prepare](CausalLmTask& task, TrainerParts& parts) {
      prepare(task, parts);
      parts.shard_by_rank = true;
    };
    return options;
  };
  const TemporaryDirectory output;
  auto a = arguments_for(output / "whole", 2);
  a.logging_strategy = Interval::epoch;  // rank 0 logs, and rank 1 must take part
  const auto whole = run(a, own());
  ASSERT_FALSE(whole.main.logs.empty());
  EXPECT_NE(whole.main.losses, run(arguments_for(output / "shared", 2), streaming(2)).main.losses);
  a.output_dir = output / "broken";
  RunOptions stopped = own();
  stopped.signal_after = 17;
  run(a, stopped);
  a.resume_from_checkpoint = "true";
  EXPECT_EQ(run(a, own()).main.losses,
            std::vector<double>(whole.main.losses.begin() + 17, whole.main.losses.end()));
}

TEST(TrainerStream, EpochsAreCounted) {
  const TemporaryDirectory output;
  auto a = arguments_for(output / "run", 1);
  a.max_steps = 21;  // 126 samples: 41 end in step 7, 82 in step 14, 123 in step 21
  a.logging_strategy = Interval::epoch;
  RunOptions options = streaming(1);
  options.header = true;
  const auto outcome = run(a, options);
  ASSERT_EQ(outcome.main.logs.size(), 4U);
  EXPECT_EQ(outcome.main.logs[0]["step"], 7);
  EXPECT_EQ(outcome.main.logs[1]["step"], 14);
  EXPECT_EQ(outcome.main.logs[2]["step"], 21);
  EXPECT_GT(outcome.main.logs[0]["epoch"].get<double>(), 1);
  EXPECT_LT(outcome.main.logs[0]["epoch"].get<double>(), 1.2);
  EXPECT_GT(outcome.main.logs[2]["epoch"].get<double>(), 3);
  EXPECT_THAT(outcome.header,
              HasSubstr("steps: 21 on a stream of 5 shards, shuffled through a buffer of 9"));
}

TEST(TrainerStream, ErrorsAreOneLine) {
  const TemporaryDirectory output;
  auto a = arguments_for(output / "run", 1);
  a.max_steps = -1;
  EXPECT_THAT(error_of(a, streaming(1)), HasSubstr("give max_steps"));
  a.max_steps = 4;
  a.save_strategy = Interval::steps;
  a.save_steps = 2;
  run(a, streaming(1));
  a.resume_from_checkpoint = output / "run/checkpoint-2";
  EXPECT_THAT(error_of(a, {}), HasSubstr("is of a run with streaming; give --streaming true"));
  EXPECT_THAT(error_of(a, streaming(1, 10)), HasSubstr("another shuffle_buffer_size"));
  a.ignore_data_skip = true;
  EXPECT_EQ(error_of(a, {}), "no error");
  EXPECT_EQ(error_of(a, streaming(1, 10)), "no error");
  a.output_dir = output / "plain";
  a.resume_from_checkpoint = "";
  run(a, {});
  a.resume_from_checkpoint = output / "plain/checkpoint-2";
  a.ignore_data_skip = false;
  EXPECT_THAT(error_of(a, streaming(1)), HasSubstr("is of a run without streaming"));
}

// The checkpoint's own number of steps once bounded the position, and drawing up to it took
// practically for ever.
TEST(TrainerStream, RefusesAPositionThatNoRunReached) {
  const TemporaryDirectory output;
  auto a = arguments_for(output / "run", 1);
  a.max_steps = 4;
  a.save_strategy = Interval::steps;
  a.save_steps = 2;
  run(a, streaming(1));
  const std::string saved = output / "run/checkpoint-2";
  const auto forged = [&](const char* name, std::int64_t step, std::int64_t position,
                          std::int64_t epoch) {
    auto state = nlohmann::json::parse(std::ifstream(saved + "/trainer_state.json"));
    state["global_step"] = step;
    nlohmann::json& stream = state["shoal"]["stream"];
    stream["position"] = position;
    stream["epoch"] = epoch;
    stream["epoch_begin"] = 0;
    stream["shard_sizes"] = {std::int64_t{1} << 60};
    const std::string place = output / (std::string(name) + "/checkpoint-2");
    CheckpointTransaction transaction(place, 2);
    for (const auto& entry : std::filesystem::directory_iterator(saved))
      if (entry.path().filename() != "COMPLETE")
        std::filesystem::copy(entry.path(), transaction.directory());
    std::ofstream(transaction.directory() + "/trainer_state.json") << state;
    transaction.commit();
    a.resume_from_checkpoint = place;
    return error_of(a, streaming(1));
  };
  constexpr std::int64_t kFar = std::int64_t{1} << 55;
  EXPECT_THAT(forged("far", 2, kFar, 0), HasSubstr("2097152 is the last after 2 steps"));
  EXPECT_THAT(forged("epoch", 2, 12, 1), HasSubstr("epoch 1 began at 0"));
  forged("steps", std::int64_t{1} << 40, kFar, 0);  // no step is left to train
}

TEST(TrainerLoader, SlowSamplesShowInTheLogAndGiveAHint) {
  const TemporaryDirectory output;
  auto a = arguments_for(output / "slow", 1);
  a.max_steps = 9;
  a.logging_steps = 3;
  RunOptions options;
  options.prepare = [](CausalLmTask&, TrainerParts& parts) {
    parts.train_dataset = std::make_shared<ToyShard>(0, 41, 6.0);
  };
  const auto slow = run(a, options);
  const std::string& said = slow.main.messages;
  EXPECT_THAT(said, HasSubstr("the loader is the bottleneck: up to step 6"));
  EXPECT_THAT(said, HasSubstr("raise dataloader_num_workers, which is 0"));
  EXPECT_EQ(said.find("hint:"), said.rfind("hint:"));
  EXPECT_GT(slow.main.logs[1]["loader_stall_share"].get<double>(), 0.2);
  std::ifstream file(output / "slow/metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  const auto record = nlohmann::json::parse(line);
  EXPECT_GE(record["data_seconds"].get<double>(), 6 * 0.006);  // per step
  EXPECT_FALSE(record.contains("loader_stall_seconds"));
  EXPECT_LE(record["loader_samples_per_second"].get<double>(), 1 / 0.006);
  EXPECT_GT(record["loader_samples_per_second"].get<double>(), 0);
}

}  // namespace
}  // namespace shoal::test
