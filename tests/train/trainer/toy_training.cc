#include "train/trainer/toy_training.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/ranks.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/memory/limited_memory.h"

namespace shoal::test {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// Fixed pseudo-random ids. Every third sample has positions without a target, so ranks have
// different numbers of targets.
class ToyDataset final : public Dataset {
 public:
  ToyDataset(std::int64_t size, std::uint32_t salt) : size_(size), salt_(salt) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    std::uint32_t x = static_cast<std::uint32_t>(index) * 2654435761U + salt_;
    for (int t = 0; t < 12; ++t) {
      x = x * 1664525U + 1013904223U;
      sample.input_ids.push_back(static_cast<std::int32_t>((x >> 16U) % kToyVocabulary));
    }
    sample.labels = sample.input_ids;
    if (index % 3 == 0)
      for (int t = 0; t < 7; ++t) sample.labels[static_cast<std::size_t>(t)] = kIgnoreLabel;
    return sample;
  }

 private:
  std::int64_t size_;
  std::uint32_t salt_;
};

// Runs one rank. The outcome is rank 0's.
test::RankBody body_of(const TrainingArguments& arguments, const RunOptions& options,
                       Outcome& outcome, std::atomic<int>& signal) {
  outcome.memory_peaks.resize(static_cast<std::size_t>(options.ranks));
  return [&](const World& world, Store& store) {
    auto host = make_host_memory();
    LimitedMemory limited(
        *host, {options.memory_limit ? options.memory_limit(world.rank) : INT64_MAX, "the test's"});
    PoolMemory pool(limited);
    nn::PlannedMemory planned(pool, limited);
    const bool captures = arguments.step_capture == StepCaptureMode::on;
    CountingMemory memory(captures ? static_cast<MemoryResource&>(planned) : limited);
    const auto kernels = kernels::make_cpu_kernels({.threads = 1, .memory = &memory});
    const auto communicator = collectives::make_communicator(world, store);
    CausalLmTask task(options.config, nullptr,
                      {.gradient_checkpointing = arguments.gradient_checkpointing});
    Recorder other;
    Recorder& recorder = world.rank == 0 ? outcome.main : other;
    recorder.stop_after = options.stop_after;
    // Only the last rank receives the signal, but all must stop.
    if (world.rank == options.ranks - 1) {
      recorder.signal_after = options.signal_after;
      recorder.signal = &signal;
      recorder.fail_after = options.fail_after;
    }
    const std::atomic<int> never{0};
    TrainerParts parts;
    parts.task = &task;
    parts.kernels = kernels.get();
    parts.memory = &memory;
    if (captures) parts.planned_memory = &planned;
    parts.communicator = communicator.get();
    parts.train_dataset = std::make_shared<ToyDataset>(options.samples, 7U);
    if (options.eval_samples > 0)
      parts.eval_dataset = std::make_shared<ToyDataset>(options.eval_samples, 99U);
    parts.collator = std::make_shared<PaddingCollator>();
    parts.initial_weights = options.initial_weights;
    parts.callbacks = {&recorder};
    parts.stop_signal = world.rank == options.ranks - 1 ? &signal : &never;
    if (options.prepare) options.prepare(task, parts);
    Trainer trainer(options.arguments_of ? options.arguments_of(world.rank) : arguments, parts);
    if (options.header) {
      const std::vector<std::string> lines = trainer.header();
      if (world.rank == 0) outcome.header = fmt::format("{}", fmt::join(lines, "\n"));
    }
    const TrainResult result = trainer.train();
    if (world.rank == 0) outcome.result = result;
    outcome.memory_peaks.at(static_cast<std::size_t>(world.rank)) = memory.total().peak;
    if (!options.save_model_to.empty()) trainer.save_model(options.save_model_to);
    if (options.after) options.after(trainer, world.rank);
    communicator->barrier()->wait();
  };
}

}  // namespace

nn::DecoderConfig toy_config() {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = kToyVocabulary;
  config.max_position_embeddings = 16;
  config.hidden_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.bos_token_id = config.eos_token_id = 0;
  return config;
}

TrainingArguments toy_arguments(const std::string& output) {
  TrainingArguments a;
  a.output_dir = output;
  a.per_device_train_batch_size = 8;
  a.per_device_eval_batch_size = 3;
  a.max_steps = 50;
  a.learning_rate = 3e-3;
  a.weight_decay = 0.01;
  a.warmup_steps = 5;
  a.logging_steps = 7;
  a.save_strategy = Interval::no;
  return a;
}

Outcome run(const TrainingArguments& arguments, const RunOptions& options) {
  Outcome outcome;
  std::atomic<int> signal{0};
  test::run_thread_ranks(options.ranks, body_of(arguments, options, outcome, signal));
  return outcome;
}

std::vector<std::string> errors_of(const TrainingArguments& arguments, const RunOptions& options) {
  Outcome outcome;
  std::atomic<int> signal{0};
  return test::thread_rank_errors(options.ranks, body_of(arguments, options, outcome, signal));
}

std::string error_of(const TrainingArguments& arguments, const RunOptions& options) {
  try {
    run(arguments, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], tolerance * std::abs(a[i])) << "step " << i + 1;
}

WentOn stop_and_go_on(TrainingArguments arguments, const RunOptions& options,
                      const std::string& output) {
  namespace fs = std::filesystem;
  const std::int64_t steps = arguments.max_steps, half = steps / 2;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = static_cast<double>(half);
  WentOn went;
  arguments.output_dir = output + "/whole";
  went.whole = run(arguments, options);
  arguments.output_dir = output + "/broken";
  RunOptions stopped = options;
  stopped.stop_after = half;
  run(arguments, stopped);
  arguments.resume_from_checkpoint = "true";
  went.rest = run(arguments, options);

  EXPECT_THAT(went.rest.main.messages, HasSubstr("resuming from"));
  const auto& losses = went.whole.main.losses;
  EXPECT_EQ(went.rest.main.losses, std::vector<double>(losses.begin() + half, losses.end()));
  EXPECT_EQ(went.whole.result.train_loss, went.rest.result.train_loss);
  const std::string last = fmt::format("/checkpoint-{}", steps);
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(output + "/whole" + last)) {
    if (!entry.is_regular_file()) continue;
    const std::string file = "/" + fs::relative(entry.path(), output + "/whole" + last).string();
    EXPECT_EQ(bytes_of(entry.path()), bytes_of(output + "/broken" + last + file)) << file;
    ++files;
  }
  EXPECT_GE(files, 3) << "the model, the optimizer's state and the Trainer's";
  return went;
}

void expect_resume_to_the_bit(TrainingArguments arguments, const RunOptions& options) {
  const TemporaryDirectory output;
  arguments.max_steps = 50;
  EXPECT_EQ(stop_and_go_on(arguments, options, output.path()).rest.main.losses.size(), 25U);
}

}  // namespace shoal::test
