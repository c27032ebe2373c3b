#include "shoal/train/trainer/trainer.h"

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>

#include "support/ranks.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <sys/resource.h>

#include "shoal/runtime/base/error.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/tasks/causal_lm.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryDirectory;

constexpr std::int32_t kVocabulary = 61;

// Fixed pseudo-random ids; every third sample has positions without a loss, so that ranks count
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
      sample.input_ids.push_back(static_cast<std::int32_t>((x >> 16U) % kVocabulary));
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

nn::Gpt2Config toy_config() {
  nn::Gpt2Config config;
  config.vocab_size = kVocabulary;
  config.n_positions = 16;
  config.n_embd = 24;
  config.n_layer = 2;
  config.n_head = 3;
  config.bos_token_id = config.eos_token_id = 0;
  return config;
}

class Recorder final : public TrainerCallback {
 public:
  void on_step_end(const StepReport& report, TrainerControl& control) override {
    losses.push_back(report.loss);
    norms.push_back(report.grad_norm);
    if (report.step == fail_after) throw Error(ErrorCode::internal, "the test's own failure");
    if (report.step == stop_after) control.should_stop = true;
    if (report.step == signal_after && signal != nullptr) *signal = 15;
  }
  void on_log(const nlohmann::ordered_json& record) override { logs.push_back(record); }
  void on_save(std::int64_t step, const std::string&) override { saves.push_back(step); }
  void on_evaluate(const nlohmann::ordered_json& metrics) override {
    evaluations.push_back(metrics);
  }
  void on_message(const std::string& line) override { messages += line + "\n"; }
  std::vector<double> losses, norms;
  std::vector<nlohmann::ordered_json> logs, evaluations;
  std::vector<std::int64_t> saves;
  std::string messages;
  std::int64_t stop_after = -1, signal_after = -1, fail_after = -1;
  std::atomic<int>* signal = nullptr;
};

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

struct Outcome {
  Recorder main;  // rank 0's
  TrainResult result;
};

struct RunOptions {
  int ranks = 1;
  std::int64_t samples = 41;  // not a multiple of anything
  std::int64_t eval_samples = 0;
  std::int64_t stop_after = -1, signal_after = -1;
  std::int64_t fail_after = -1;  // the last rank throws
  nn::Gpt2Config config = toy_config();
  std::function<TrainingArguments(int rank)> arguments_of = {};  // empty: the same on each
};

// What each rank does; the outcome is rank 0's.
test::RankBody body_of(const TrainingArguments& arguments, const RunOptions& options,
                       Outcome& outcome, std::atomic<int>& signal) {
  return [&](const World& world, Store& store) {
    auto host = make_host_memory();
    CountingMemory memory(*host);
    const auto kernels = kernels::make_cpu_kernels({.threads = 1, .memory = &memory});
    const auto communicator = collectives::make_communicator(world, store);
    CausalLmTask task(options.config, nullptr,
                      {.gradient_checkpointing = arguments.gradient_checkpointing});
    Recorder other;
    Recorder& recorder = world.rank == 0 ? outcome.main : other;
    recorder.stop_after = options.stop_after;
    // Only the last rank is told to stop: all must.
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
    parts.communicator = communicator.get();
    parts.train_dataset = std::make_shared<ToyDataset>(options.samples, 7U);
    if (options.eval_samples > 0)
      parts.eval_dataset = std::make_shared<ToyDataset>(options.eval_samples, 99U);
    parts.collator = std::make_shared<PaddingCollator>();
    parts.callbacks = {&recorder};
    parts.stop_signal = world.rank == options.ranks - 1 ? &signal : &never;
    Trainer trainer(options.arguments_of ? options.arguments_of(world.rank) : arguments, parts);
    const TrainResult result = trainer.train();
    if (world.rank == 0) outcome.result = result;
    communicator->barrier()->wait();
  };
}

Outcome run(const TrainingArguments& arguments, const RunOptions& options = {}) {
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

std::string error_of(const TrainingArguments& arguments, const RunOptions& options = {}) {
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

TEST(Trainer, LearnsAndRepeatsToTheBit) {
  const TemporaryDirectory output;
  const auto first = run(toy_arguments(output / "a"));
  const auto second = run(toy_arguments(output / "b"));
  ASSERT_EQ(first.main.losses.size(), 50U);
  EXPECT_LT(first.main.losses.back(), 0.97 * first.main.losses.front());  // random ids: memory
  EXPECT_EQ(first.main.losses, second.main.losses);
  EXPECT_EQ(first.main.norms, second.main.norms);
}

TEST(Trainer, DropoutChangesTheCurve) {  // so that the tests below say something
  const TemporaryDirectory output;
  RunOptions still;
  still.config.resid_pdrop = still.config.embd_pdrop = still.config.attn_pdrop = 0;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 3;
  EXPECT_NE(run(arguments).main.losses, run(arguments, still).main.losses);
}

// An option that parses and then does nothing is worse than none.
TEST(Trainer, EachOptionOfTheUpdateHasItsEffect) {
  const TemporaryDirectory output;
  using Change = std::function<void(TrainingArguments&)>;
  const auto losses = [&](Optim optim, const Change& change) {
    auto arguments = toy_arguments(output.path());
    arguments.max_steps = 7;
    arguments.warmup_steps = 1;
    arguments.optim = optim;
    arguments.learning_rate = optim == Optim::sgd ? 0.1 : 3e-3;
    if (change) change(arguments);
    return run(arguments).main.losses;
  };
  const std::vector<std::pair<const char*, Change>> of_all = {
      {"learning_rate", [](auto& a) { a.learning_rate /= 2; }},
      {"weight_decay", [](auto& a) { a.weight_decay = 0.5; }},
      {"max_grad_norm", [](auto& a) { a.max_grad_norm = 0.01; }},
      {"label_smoothing_factor", [](auto& a) { a.label_smoothing_factor = 0.2; }},
      {"lr_scheduler_type", [](auto& a) { a.lr_scheduler_type = "cosine"; }},
      {"lr_scheduler_kwargs",
       [](auto& a) {
         a.lr_scheduler_type = "cosine_with_min_lr";
         a.lr_scheduler_kwargs = {{"min_lr", 1e-3}};
       }},
      {"warmup_steps", [](auto& a) { a.warmup_steps = 3; }},
      {"warmup_ratio",
       [](auto& a) {
         a.warmup_steps = 0;
         a.warmup_ratio = 0.5;
       }},
      {"seed", [](auto& a) { a.seed = 43; }},
      {"data_seed", [](auto& a) { a.data_seed = 43; }},
      {"gradient_accumulation_steps", [](auto& a) { a.gradient_accumulation_steps = 2; }},
      {"bf16", [](auto& a) { a.bf16 = true; }},
      {"fp16", [](auto& a) { a.fp16 = true; }},
      {"dataloader_drop_last", [](auto& a) { a.dataloader_drop_last = true; }},
  };
  const std::vector<std::pair<const char*, Change>> of_adam = {
      {"adam_beta1", [](auto& a) { a.adam_beta1 = 0.5; }},
      {"adam_beta2", [](auto& a) { a.adam_beta2 = 0.9; }},
      {"adam_epsilon", [](auto& a) { a.adam_epsilon = 1e-2; }},
  };
  const std::vector<std::pair<const char*, Change>> of_sgd = {
      {"sgd_momentum", [](auto& a) { a.sgd_momentum = 0.9; }}};
  const auto usual = losses(Optim::adamw, {}), lamb = losses(Optim::lamb, {}),
             sgd = losses(Optim::sgd, {});
  EXPECT_NE(usual, lamb);
  for (const auto& [name, change] : of_all) EXPECT_NE(usual, losses(Optim::adamw, change)) << name;
  for (const auto& [name, change] : of_adam) {
    EXPECT_NE(usual, losses(Optim::adamw, change)) << name;
    EXPECT_NE(lamb, losses(Optim::lamb, change)) << name << " of LAMB";
  }
  for (const auto& [name, change] : of_sgd) EXPECT_NE(sgd, losses(Optim::sgd, change)) << name;
}

TEST(Trainer, RanksAndAccumulationChangeOnlyRounding) {
  const TemporaryDirectory output;
  // 48 samples: an epoch ends with a whole global batch in every layout.
  const auto with = [&](int ranks, std::int64_t batch, std::int64_t accumulated) {
    auto arguments = toy_arguments(output / fmt::format("{}-{}", ranks, batch));
    arguments.per_device_train_batch_size = batch;
    arguments.gradient_accumulation_steps = accumulated;
    return run(arguments, {.ranks = ranks, .samples = 48}).main;
  };
  const Recorder one = with(1, 8, 1);
  for (const auto& [ranks, batch, accumulated] :
       {std::tuple{2, 4, 1}, {4, 2, 1}, {1, 2, 4}, {2, 2, 2}, {4, 1, 2}}) {
    SCOPED_TRACE(fmt::format("{} ranks x {} x {}", ranks, batch, accumulated));
    const Recorder other = with(ranks, batch, accumulated);
    expect_close(one.losses, other.losses, 2e-5);
    expect_close(one.norms, other.norms, 1e-3);
  }
}

TEST(Trainer, LoaderWorkersChangeNothing) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 20;
  const auto none = run(arguments);
  arguments.dataloader_num_workers = 3;
  EXPECT_EQ(none.main.losses, run(arguments).main.losses);
}

TEST(Trainer, GradientCheckpointingChangesNothing) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 10;
  const auto kept = run(arguments);
  arguments.gradient_checkpointing = true;
  const auto recomputed = run(arguments);
  expect_close(kept.main.losses, recomputed.main.losses, 1e-6);
}

void expect_resume_to_the_bit(TrainingArguments arguments, const RunOptions& options) {
  const TemporaryDirectory output;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 25;
  arguments.output_dir = output / "whole";
  const auto whole = run(arguments, options);
  arguments.output_dir = output / "broken";
  RunOptions stopped = options;
  stopped.stop_after = 25;
  run(arguments, stopped);
  arguments.resume_from_checkpoint = "true";
  const auto rest = run(arguments, options);

  ASSERT_EQ(rest.main.losses.size(), 25U);
  EXPECT_THAT(rest.main.messages, HasSubstr("resuming from"));
  EXPECT_EQ(rest.main.losses,
            std::vector<double>(whole.main.losses.begin() + 25, whole.main.losses.end()));
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "trainer_state.json"})
    EXPECT_EQ(bytes_of(output / "whole/checkpoint-50/" + file),
              bytes_of(output / "broken/checkpoint-50/" + file))
        << file;
  EXPECT_EQ(whole.result.train_loss, rest.result.train_loss);
}

// Updates behind the next forward have the bits of updates that wait for all gradients.
TEST(TrainerEarlyForward, ChangesNoBit) {
  const TemporaryDirectory output;
  struct Case {
    const char* name;
    int ranks;
    std::function<void(TrainingArguments&)> change;
  };
  const std::vector<Case> cases = {
      {"one", 1, {}},
      {"two", 2, {}},
      {"four", 4, {}},
      {"accumulation", 2, [](auto& a) { a.gradient_accumulation_steps = 3; }},
      {"bf16", 2, [](auto& a) { a.bf16 = true; }},
      {"lamb", 2, [](auto& a) { a.optim = Optim::lamb; }},
      {"checkpointing", 2, [](auto& a) { a.gradient_checkpointing = true; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    auto arguments = toy_arguments(output / fmt::format("{}-early", c.name));
    arguments.per_device_train_batch_size = 2;
    arguments.max_steps = 30;
    arguments.max_grad_norm = 0;
    arguments.ddp_bucket_cap_mb = 0.01;  // several buckets
    arguments.ddp_first_bucket_cap_mb = 0.001;
    arguments.eval_strategy = arguments.save_strategy = Interval::steps;
    arguments.eval_steps = 11;
    arguments.save_steps = 12;
    if (c.change) c.change(arguments);
    EXPECT_EQ(arguments.overlaps_forward(c.ranks), c.ranks > 1);
    const RunOptions options{.ranks = c.ranks, .eval_samples = 10};
    const auto early = run(arguments, options);
    arguments.ddp_overlap_forward = false;
    arguments.output_dir = output / fmt::format("{}-late", c.name);
    const auto late = run(arguments, options);
    ASSERT_EQ(late.main.losses.size(), 30U);
    EXPECT_EQ(early.main.losses, late.main.losses);
    EXPECT_EQ(early.main.logs.size(), late.main.logs.size());
    for (std::size_t i = 0; i < late.main.evaluations.size(); ++i)
      EXPECT_EQ(early.main.evaluations[i]["eval_loss"], late.main.evaluations[i]["eval_loss"]);
    ASSERT_EQ(late.main.evaluations.size(), 2U);
    for (std::size_t i = 0; i < 30; ++i) {
      const auto step = i + 1;
      // Steps that log (7), evaluate or save wait for all; the others do not know their norm.
      const bool waits = step % 7 == 0 || step % 11 == 0 || step % 12 == 0 || step == 30;
      if (waits || c.ranks == 1) {
        EXPECT_EQ(early.main.norms[i], late.main.norms[i]) << step;
      } else {
        EXPECT_TRUE(std::isnan(early.main.norms[i])) << step;
      }
    }
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "trainer_state.json"})
      for (const int step : {12, 24, 30})
        EXPECT_EQ(bytes_of(output / fmt::format("{}-early/checkpoint-{}/{}", c.name, step, file)),
                  bytes_of(output / fmt::format("{}-late/checkpoint-{}/{}", c.name, step, file)))
            << file << " of step " << step;
  }
}

TEST(TrainerEarlyForward, WaitsWhereSomethingNeedsAllGradients) {
  auto arguments = toy_arguments("");
  EXPECT_FALSE(arguments.overlaps_forward(2));  // clips
  arguments.max_grad_norm = 0;
  EXPECT_TRUE(arguments.overlaps_forward(2));
  EXPECT_FALSE(arguments.overlaps_forward(1));
  arguments.fp16 = true;
  EXPECT_FALSE(arguments.overlaps_forward(2));
}

// A step whose gradients are not finite on any one rank changes nothing, on all of them.
TEST(TrainerEarlyForward, LeavesOutWholeStepsThatAreNotFinite) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output / "early");
  arguments.max_steps = 12;
  arguments.max_grad_norm = 0;
  arguments.optim = Optim::sgd;
  arguments.learning_rate = 1e30;  // the second step's activations overflow
  arguments.warmup_steps = 0;
  arguments.weight_decay = 0;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 6;
  const auto early = run(arguments, {.ranks = 2});
  arguments.ddp_overlap_forward = false;
  arguments.output_dir = output / "late";
  const auto late = run(arguments, {.ranks = 2});
  EXPECT_THAT(early.main.messages, HasSubstr("is not finite; such steps change nothing"));
  EXPECT_EQ(early.main.messages, late.main.messages);
  for (const int step : {6, 12})
    EXPECT_EQ(bytes_of(output / fmt::format("early/checkpoint-{}/model.safetensors", step)),
              bytes_of(output / fmt::format("late/checkpoint-{}/model.safetensors", step)));
}

TEST(TrainerEarlyForward, ResumesToTheBit) {
  auto arguments = toy_arguments("");
  arguments.max_grad_norm = 0;
  arguments.per_device_train_batch_size = 2;
  arguments.gradient_accumulation_steps = 2;
  expect_resume_to_the_bit(arguments, {.ranks = 2});
}

// A rank that ends while gradients are under way: the others' forward says which.
TEST(TrainerEarlyForward, NamesTheRankThatFailed) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_grad_norm = 0;
  RunOptions options{.ranks = 3};
  options.fail_after = 4;
  const auto errors = errors_of(arguments, options);
  ASSERT_EQ(errors.size(), 3U);
  EXPECT_THAT(errors[2], HasSubstr("the test's own failure"));
  for (const int rank : {0, 1})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr("rank 2")) << rank;
}

TEST(TrainerResume, IsBitIdentical) { expect_resume_to_the_bit(toy_arguments(""), {}); }

TEST(TrainerResume, IsBitIdenticalOnTwoRanksWithAccumulationAndWorkers) {
  auto arguments = toy_arguments("");
  arguments.per_device_train_batch_size = 2;
  arguments.gradient_accumulation_steps = 3;  // the last update of an epoch has fewer
  arguments.dataloader_num_workers = 2;
  expect_resume_to_the_bit(arguments, {.ranks = 2});
}

TEST(TrainerResume, IsBitIdenticalInBf16) {
  auto arguments = toy_arguments("");
  arguments.bf16 = true;
  expect_resume_to_the_bit(arguments, {});
}

TEST(TrainerResume, IsBitIdenticalInF16WithItsLossScale) {
  auto arguments = toy_arguments("");
  arguments.fp16 = true;
  expect_resume_to_the_bit(arguments, {});
}

TEST(TrainerResume, PassesOverAnIncompleteCheckpoint) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 9;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 3;
  const auto whole = run(arguments);
  EXPECT_EQ(whole.main.saves, (std::vector<std::int64_t>{3, 6, 9}));
  std::filesystem::remove(output / "checkpoint-9/COMPLETE");
  std::filesystem::resize_file(output / "checkpoint-6/model.safetensors", 100);
  arguments.resume_from_checkpoint = "true";
  const auto rest = run(arguments);
  EXPECT_EQ(rest.main.losses.size(), 6U);  // from step 3
  EXPECT_THAT(rest.main.messages, HasSubstr("no COMPLETE marker"));
  EXPECT_THAT(rest.main.messages, HasSubstr("100 bytes"));
  EXPECT_EQ(rest.main.losses.back(), whole.main.losses.back());
}

TEST(TrainerResume, SaysWhatItCannotDo) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 4;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  run(arguments);
  EXPECT_THAT(error_of(arguments), HasSubstr("--resume_from_checkpoint true"));
  arguments.resume_from_checkpoint = output / "checkpoint-3";
  EXPECT_THAT(error_of(arguments), HasSubstr("cannot resume from"));
  arguments.resume_from_checkpoint = output / "checkpoint-2";
  RunOptions wider;
  wider.config.n_embd = 48;
  EXPECT_THAT(error_of(arguments, wider), HasSubstr("wte"));
  // Nothing of all that has touched what was there.
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-4", true), std::nullopt);
  arguments.resume_from_checkpoint = "false";
  arguments.overwrite_output_dir = true;
  arguments.save_strategy = Interval::no;
  EXPECT_EQ(run(arguments).main.losses.size(), 4U);
  EXPECT_TRUE(list_checkpoints(output.path()).empty());
}

// As where output_dir is each host's own.
TEST(TrainerResume, RanksThatSeeDifferentCheckpointsAreRefused) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output / "0");
  arguments.max_steps = 2;
  arguments.save_strategy = Interval::steps;
  run(arguments);
  arguments.resume_from_checkpoint = "true";
  RunOptions options{.ranks = 2};
  options.arguments_of = [&](int rank) {
    TrainingArguments own = arguments;
    own.output_dir = output / std::to_string(rank);
    return own;
  };
  EXPECT_THAT(error_of(arguments, options),
              HasSubstr("rank 0 would resume from step 2, but rank 1 from no checkpoint"));
}

TEST(TrainerResume, AnIncompleteCheckpointIsLeftAlone) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 2;
  std::filesystem::create_directory(output / "checkpoint-1");
  arguments.resume_from_checkpoint = "true";
  const auto begun = run(arguments);
  EXPECT_EQ(begun.main.losses.size(), 2U);
  EXPECT_THAT(begun.main.messages, HasSubstr("checkpoint-1 is passed over"));
  EXPECT_TRUE(std::filesystem::exists(output / "checkpoint-1"));
}

TEST(TrainerCheckpoints, AreRotated) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 10;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  arguments.save_total_limit = 2;
  run(arguments);
  const auto left = list_checkpoints(output.path());
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(left[0].step, 8);
  EXPECT_EQ(left[1].step, 10);
}

// A run that goes back writes lower numbers than those of the run that it leaves.
TEST(TrainerCheckpoints, RotationNeverTakesTheOneJustWritten) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 10;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  run(arguments);
  std::filesystem::create_directory(output / "tmp-checkpoint-9.0");
  arguments.save_total_limit = 1;
  arguments.max_steps = 6;
  arguments.resume_from_checkpoint = output / "checkpoint-2";
  const auto back = run(arguments);
  EXPECT_THAT(back.main.messages, HasSubstr("checkpoint-10 is of a later step"));
  EXPECT_EQ(back.result.last_checkpoint, output / "checkpoint-6");
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-6", true), std::nullopt);
  EXPECT_FALSE(std::filesystem::exists(output / "tmp-checkpoint-9.0"));
}

// The kernel refuses bytes beyond RLIMIT_FSIZE as it refuses them on a full disk.
TEST(TrainerCheckpoints, AFullDiskEndsTheRunAndLeavesEarlierOnes) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 2;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  run(arguments);
  arguments.max_steps = 20;
  arguments.resume_from_checkpoint = "true";
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1 << 14, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string text = error_of(arguments);
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(text, HasSubstr("model.safetensors"));
  ASSERT_EQ(list_checkpoints(output.path()).size(), 1U);
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-2", true), std::nullopt);
}

TEST(TrainerStop, OneRanksSignalStopsAllWithACheckpoint) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.per_device_train_batch_size = 4;
  const auto stopped = run(arguments, {.ranks = 2, .signal_after = 10});
  EXPECT_EQ(stopped.result.stop_signal, 15);  // although rank 0 got none
  // The signal comes at the end of step 10: no other is begun.
  EXPECT_EQ(stopped.result.global_step, 10);
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-10", true), std::nullopt);
  EXPECT_EQ(stopped.result.last_checkpoint, output / "checkpoint-10");
  // The batches drawn for step 11 are not lost.
  arguments.resume_from_checkpoint = "true";
  const auto rest = run(arguments, {.ranks = 2});
  arguments.resume_from_checkpoint = "false";
  arguments.output_dir = output / "whole";
  const auto whole = run(arguments, {.ranks = 2});
  EXPECT_EQ(rest.main.losses,
            std::vector<double>(whole.main.losses.begin() + 10, whole.main.losses.end()));
}

TEST(TrainerStop, ACheckpointOfTheSameStepIsNotWrittenAgain) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 5;
  const auto stopped = run(arguments, {.signal_after = 10});
  EXPECT_EQ(stopped.main.saves, (std::vector<std::int64_t>{5, 10}));
  EXPECT_EQ(stopped.result.last_checkpoint, output / "checkpoint-10");
}

// What another run left under a higher number is not this run's.
TEST(TrainerStop, TheLastCheckpointIsThisRuns) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 6;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 3;
  run(arguments);
  arguments.resume_from_checkpoint = output / "checkpoint-3";
  const auto stopped = run(arguments, {.signal_after = 4});
  EXPECT_EQ(stopped.result.last_checkpoint, output / "checkpoint-4");
}

TEST(TrainerEvaluation, CountsEverySampleOnceWhateverTheRanks) {
  const TemporaryDirectory output;
  std::vector<double> losses;
  for (const int ranks : {1, 2, 3, 4}) {
    auto arguments = toy_arguments(output / std::to_string(ranks));
    arguments.max_steps = 1;
    arguments.learning_rate = 0;
    arguments.eval_strategy = Interval::steps;
    arguments.eval_steps = 1;
    const auto outcome = run(arguments, {.ranks = ranks, .eval_samples = 7});
    ASSERT_EQ(outcome.main.evaluations.size(), 1U);
    losses.push_back(outcome.main.evaluations[0]["eval_loss"].get<double>());
    EXPECT_NEAR(outcome.main.evaluations[0]["eval_perplexity"].get<double>(),
                std::exp(losses.back()), 1e-9);
  }
  for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-6 * losses[0]);
  EXPECT_NEAR(losses[0], std::log(kVocabulary), 0.1);  // untrained
}

TEST(TrainerEvaluation, FewerSamplesThanRanks) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 1;
  arguments.eval_strategy = Interval::steps;
  arguments.eval_steps = 1;
  const auto outcome = run(arguments, {.ranks = 4, .eval_samples = 2});
  EXPECT_TRUE(std::isfinite(outcome.main.evaluations.at(0)["eval_loss"].get<double>()));
}

TEST(TrainerEvaluation, TheBestModelIsKeptAndLoaded) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 8;
  arguments.learning_rate = 0.5;  // gets worse and worse
  arguments.eval_strategy = arguments.save_strategy = Interval::steps;
  arguments.eval_steps = 2;
  arguments.save_steps = 2;
  arguments.save_total_limit = 1;
  arguments.load_best_model_at_end = true;
  arguments.metric_for_best_model = "perplexity";
  const auto outcome = run(arguments, {.eval_samples = 7});
  double best = INFINITY;
  std::size_t at = 0;
  for (std::size_t i = 0; i < outcome.main.evaluations.size(); ++i) {
    const double value = outcome.main.evaluations[i]["eval_perplexity"].get<double>();
    if (value < best) {
      best = value;
      at = i;
    }
  }
  const std::string path = checkpoint_path(output.path(), 2 * static_cast<std::int64_t>(at + 1));
  EXPECT_EQ(checkpoint_problem(path, true), std::nullopt);
  EXPECT_THAT(outcome.main.messages, HasSubstr("loaded the best model, " + path));
}

TEST(TrainerLog, WindowsMeansAndFilesAgree) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 15;
  const auto outcome = run(arguments);
  ASSERT_EQ(outcome.main.logs.size(), 3U);  // at 7, at 14, the end
  double sum = 0;
  for (int i = 0; i < 7; ++i) sum += outcome.main.losses[static_cast<std::size_t>(i)];
  EXPECT_DOUBLE_EQ(outcome.main.logs[0]["loss"].get<double>(), sum / 7);
  EXPECT_EQ(outcome.main.logs[0]["step"], 7);
  EXPECT_NEAR(outcome.main.logs[1]["epoch"].get<double>(), 2 + 2.0 / 6, 1e-12);  // 6 batches
  EXPECT_TRUE(outcome.main.logs[2].contains("train_runtime"));
  std::ifstream file(output / "metrics.jsonl");
  std::string line;
  std::size_t lines = 0;
  while (std::getline(file, line)) {
    const auto record = nlohmann::json::parse(line);
    EXPECT_EQ(record["step"], outcome.main.logs[lines]["step"]);
    ++lines;
  }
  EXPECT_EQ(lines, 3U);
}

// Buckets of any size, however many at a time, give the same bits; what was hidden is in the file.
TEST(TrainerLog, SaysWhatCommunicationWasExposedAndBucketsChangeNothing) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output / "large");
  arguments.max_steps = 14;
  const auto large = run(arguments, {.ranks = 2});
  arguments.output_dir = output / "small";
  arguments.ddp_bucket_cap_mb = 0.01;
  arguments.ddp_first_bucket_cap_mb = 1e-9;
  arguments.ddp_buckets_in_flight = 1;
  const auto small = run(arguments, {.ranks = 2});
  EXPECT_EQ(large.main.losses, small.main.losses);
  EXPECT_EQ(large.main.norms, small.main.norms);
  std::ifstream file(output / "small/metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  const auto record = nlohmann::json::parse(line);
  EXPECT_GT(record.at("exposed_communication_seconds").get<double>(), 0);
  EXPECT_GE(record.at("hidden_communication_share").get<double>(), 0);
  EXPECT_LE(record.at("hidden_communication_share").get<double>(), 1);
}

TEST(TrainerLog, AWindowWithoutAFiniteLossIsNotZero) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 14;
  arguments.warmup_steps = 0;
  arguments.learning_rate = 1e30;
  const auto outcome = run(arguments);
  EXPECT_TRUE(std::isfinite(outcome.main.logs.at(0)["loss"].get<double>()));
  EXPECT_TRUE(std::isnan(outcome.main.logs.at(1)["loss"].get<double>()));
}

TEST(TrainerData, RefusesWhatCannotFillABatch) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.dataloader_drop_last = true;
  EXPECT_THAT(error_of(arguments, {.samples = 7}), HasSubstr("fewer than one batch of 8 x 1"));
  EXPECT_THAT(error_of(arguments, {.samples = 0}), HasSubstr("empty"));
  // Without drop_last a short batch is a batch.
  arguments.dataloader_drop_last = false;
  arguments.max_steps = 2;
  EXPECT_EQ(run(arguments, {.samples = 3}).main.losses.size(), 2U);
}

}  // namespace
}  // namespace shoal
