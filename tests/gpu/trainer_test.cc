// The Trainer on a GPU waits for a step only when its results are needed, and reports the same
// numbers as a Trainer that waits for every step.
#include "shoal/train/trainer/trainer.h"

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <regex>
#include <vector>

#include "gpu.h"
#include "support/error_text.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/nn/models/decoder/config.h"
#include "shoal/nn/optim/schedule.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/memory/limited_memory.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/checkpoint/trainer_state.h"
#include "shoal/train/tasks/causal_lm.h"

namespace shoal {
namespace {

using testing::TemporaryDirectory;

// alike: all samples have one length and all their positions count, so all steps are alike. masked:
// any number of positions counts. two_lengths: like masked, but every third sample is half as long.
enum class Kind : std::uint8_t { alike, masked, two_lengths };

class Samples final : public Dataset {
 public:
  explicit Samples(std::int64_t length, Kind kind = Kind::alike) : length_(length), kind_(kind) {}
  std::int64_t size() const override { return 40; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    auto x = static_cast<std::uint32_t>(index) * 2654435761U;
    const std::int64_t length =
        kind_ == Kind::two_lengths && index % 3 == 0 ? length_ / 2 : length_;
    for (std::int64_t t = 0; t < length; ++t) {
      x = x * 1664525U + 1013904223U;
      sample.input_ids.push_back(static_cast<std::int32_t>((x >> 16U) % 29));
    }
    sample.labels = sample.input_ids;
    if (kind_ != Kind::alike)
      for (std::int64_t t = 2; t < length; ++t)
        if (t % (2 + index % 5) == 0) sample.labels[static_cast<std::size_t>(t)] = kIgnoreLabel;
    return sample;
  }

 private:
  std::int64_t length_;
  Kind kind_;
};

// Removes values that depend on the clock and differ between runs.
template <typename Json>
void forget_times(Json& record) {
  for (const char* name :
       {"train_runtime", "train_samples_per_second", "train_steps_per_second", "eval_runtime",
        "eval_samples_per_second", "eval_steps_per_second", "loader_stall_share"})
    record.erase(name);
}

class Recorder final : public TrainerCallback {
 public:
  explicit Recorder(bool needs_every_step) : needs_(needs_every_step) {}
  bool needs_every_step() const override { return needs_; }
  void on_step_end(const StepReport& report, TrainerControl& control) override {
    reports.push_back(report);
    driver.push_back(device_backend(DeviceType::cuda).statistics());
    if (report.step == stop_after) control.should_stop = true;
    if (report.step == save_after) control.should_save = true;
  }
  void on_log(const nlohmann::ordered_json& record) override {
    logs.push_back(record);
    forget_times(logs.back());
  }
  void on_message(const std::string& line) override { messages += line + "\n"; }
  // Waits for the driver in step `step` (from 1), up to its on_step_end().
  std::int64_t waits_of(std::size_t step) const {
    return driver.at(step - 1).synchronizations - driver.at(step - 2).synchronizations;
  }

  std::vector<StepReport> reports;
  std::vector<DeviceStatistics> driver;
  std::vector<nlohmann::ordered_json> logs;
  std::string messages;
  std::int64_t stop_after = -1, save_after = -1;

 private:
  bool needs_;
};

struct Ran {
  std::unique_ptr<Recorder> recorder;
  TrainResult result;
  TrainerState state;
  std::int64_t activations = 0, optimizer = 0;  // peak bytes on the device
  std::int64_t held = 0;                        // peak with the pool's cache
  nlohmann::json pinned;                        // logged peak host bytes by tag
  std::vector<std::string> header, memory;
  std::string capture;
};

struct Options {
  bool waits = false;  // a callback needs every step's results
  std::int64_t stop_after = -1, save_after = -1;
  std::int64_t length = 8, layers = 2;
  Kind kind = Kind::alike;
  std::int64_t limit = std::numeric_limits<std::int64_t>::max();  // device memory in bytes
  std::int64_t pinned_limit = std::numeric_limits<std::int64_t>::max();
};

TrainingArguments arguments_of(const std::string& output) {
  TrainingArguments a;
  a.output_dir = output;
  a.per_device_train_batch_size = 2;
  a.max_steps = 14;
  a.learning_rate = 1e-2;
  a.warmup_steps = 2;
  a.logging_steps = 4;
  a.save_strategy = Interval::no;
  a.bf16 = true;
  return a;
}

// The value in the last record that has this field.
nlohmann::json logged(const std::string& output, const char* name) {
  nlohmann::json last;
  std::ifstream file(output + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);)
    if (const auto record = nlohmann::json::parse(line); record.contains(name)) last = record[name];
  return last;
}

Ran train(const TrainingArguments& arguments, const Options& options = {}) {
  const auto device_memory = make_device_memory(Device::cuda(0));
  CountingMemory held(*device_memory);
  LimitedMemory source(held, {options.limit, "the test's"});
  const auto host_source = make_pinned_memory();
  LimitedMemory host_limited(*host_source, {options.pinned_limit, "the test's"});
  CountingMemory pinned(host_limited);
  PoolMemory pool(source), host(pinned);
  nn::PlannedMemory planned(pool, source);
  CountingMemory memory(planned);
  const auto kernels = kernels::make_cuda_kernels(
      {.device = Device::cuda(0), .memory = &memory, .cache_directory = {}});
  const auto store = make_hash_store();
  collectives::CommunicatorOptions on_device;
  on_device.stream = kernels->stream();
  const auto communicator = collectives::make_communicator({}, *store, on_device);
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = 29;
  config.max_position_embeddings = options.length;
  config.hidden_size = 32;
  config.num_hidden_layers = options.layers;
  config.num_attention_heads = 2;
  config.bos_token_id = config.eos_token_id = 0;
  CausalLmTask task(config, nullptr, {.gradient_checkpointing = arguments.gradient_checkpointing});
  Ran run;
  run.recorder = std::make_unique<Recorder>(options.waits);
  run.recorder->stop_after = options.stop_after;
  run.recorder->save_after = options.save_after;
  TrainerParts parts;
  parts.task = &task;
  parts.kernels = kernels.get();
  parts.memory = &memory;
  parts.host_memory = &host;
  parts.pinned_memory = &pinned;
  parts.planned_memory = &planned;
  parts.communicator = communicator.get();
  parts.train_dataset = std::make_shared<Samples>(options.length, options.kind);
  parts.eval_dataset = std::make_shared<Samples>(options.length);
  parts.collator = std::make_shared<PaddingCollator>();
  parts.callbacks = {run.recorder.get()};
  Trainer trainer(arguments, parts);
  run.header = trainer.header();
  run.result = trainer.train();
  run.capture = trainer.describe_capture();
  run.state = trainer.state();
  for (nlohmann::json& record : run.state.log_history) forget_times(record);
  run.activations = memory.usage(MemoryTag::activations).peak;
  run.held = held.total().peak;
  run.optimizer = memory.usage(MemoryTag::optimizer).peak;
  run.memory = trainer.memory_report();
  run.pinned = logged(arguments.output_dir, "pinned_memory_peak_by_tag");
  if (arguments.save_strategy == Interval::no) {  // checkpoint copies follow the last record
    EXPECT_EQ(logged(arguments.output_dir, "pinned_memory_peak_bytes"), pinned.total().peak);
  }
  return run;
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The number of captured graphs.
int graphs_of(const Ran& run) {
  const std::string& said = run.recorder->messages;
  const std::string graph = "step capture: a graph with";
  int count = 0;
  for (auto at = said.find(graph); at != std::string::npos; at = said.find(graph, at + 1)) ++count;
  return count;
}

// Compares two runs' results, whichever steps they waited for.
void expect_same(const Ran& a, const Ran& b) {
  // Compared as text, so that a norm of NaN equals itself.
  EXPECT_EQ(nlohmann::ordered_json(a.recorder->logs).dump(),
            nlohmann::ordered_json(b.recorder->logs).dump());
  EXPECT_EQ(a.result.train_loss, b.result.train_loss);
  EXPECT_EQ(a.result.global_step, b.result.global_step);
  EXPECT_EQ(a.state.to_json().dump(), b.state.to_json().dump());
}

struct Way {
  const char* name;
  StepCaptureMode capture = StepCaptureMode::off;
  bool f16 = false, mesh = false;
};

TEST(GpuTrainer, WaitsOnlyAtLoggingSteps) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  for (const Way& way : {Way{"call by call"}, Way{"captured", StepCaptureMode::on},
                         Way{"f16 captured", StepCaptureMode::on, true},
                         Way{"mesh", StepCaptureMode::off, false, true},
                         Way{"f16 mesh", StepCaptureMode::off, true, true}}) {
    SCOPED_TRACE(way.name);
    auto arguments = arguments_of(output.path());
    arguments.overwrite_output_dir = true;
    arguments.step_capture = way.capture;
    arguments.bf16 = !way.f16;
    arguments.fp16 = way.f16;
    if (way.mesh) arguments.mp_parameters = {{"ddp", true}, {"microbatches", 2}};
    const Ran run = train(arguments), waits = train(arguments, {.waits = true});
    expect_same(run, waits);
    ASSERT_EQ(run.recorder->reports.size(), 14U);
    for (std::size_t i = 0; i < 14; ++i) {
      const StepReport &report = run.recorder->reports[i], &known = waits.recorder->reports[i];
      EXPECT_EQ(report.known, (i + 1) % 4 == 0 || i + 1 == 14) << i;
      EXPECT_TRUE(known.known);
      EXPECT_EQ(report.learning_rate, known.learning_rate);
      if (!report.known) continue;
      EXPECT_EQ(report.loss, known.loss);
      EXPECT_EQ(report.grad_norm, known.grad_norm);
    }
    // After warm-up: step 12 logs, and 14 is the last. With f16, the scale is read after a logging
    // step.
    const auto reads = [&](std::size_t step) {
      return way.f16 && (step == 9 || step == 13) ? 1 : 0;
    };
    for (std::size_t step = 9; step <= 14; ++step)
      EXPECT_EQ(run.recorder->waits_of(step), (step == 12 || step == 14 ? 1 : 0) + reads(step))
          << "step " << step;
    for (std::size_t step = 9; step <= 14; ++step)
      EXPECT_EQ(waits.recorder->waits_of(step), 1 + reads(step)) << "step " << step;
    const DeviceStatistics &before = run.recorder->driver[8], &after = run.recorder->driver[13];
    EXPECT_EQ(after.blocking_copies - before.blocking_copies, reads(13));
    EXPECT_EQ(after.deallocations, before.deallocations);
    EXPECT_EQ(graphs_of(run), way.capture == StepCaptureMode::on ? 1 : 0) << run.recorder->messages;
  }
}

// A graph is for batches of one shape, whatever number of positions counts.
TEST(GpuTrainer, CapturedStepsSupportAnyNumberOfTargets) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  for (const Kind kind : {Kind::masked, Kind::two_lengths}) {
    const bool f16 = kind == Kind::two_lengths;
    auto arguments = arguments_of(output / "plain");
    arguments.overwrite_output_dir = true;
    arguments.bf16 = !f16;
    arguments.fp16 = f16;
    arguments.per_device_train_batch_size = 1;  // no padding: as many shapes as lengths
    arguments.max_steps = 20;
    arguments.logging_steps = 1;
    arguments.save_strategy = Interval::steps;
    arguments.save_steps = 20;
    arguments.step_capture = StepCaptureMode::off;
    const Options options{.length = 16, .kind = kind};
    const Ran plain = train(arguments, options);
    arguments.output_dir = output / "captured";
    arguments.step_capture = StepCaptureMode::on;
    const Ran captured = train(arguments, options);
    expect_same(captured, plain);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(bytes_of(output / "captured/checkpoint-20/" + file),
                bytes_of(output / "plain/checkpoint-20/" + file))
          << file;
    EXPECT_EQ(graphs_of(plain), 0);
    const int shapes = kind == Kind::masked ? 1 : 2;
    EXPECT_EQ(graphs_of(captured), shapes) << captured.recorder->messages;
    EXPECT_THAT(captured.capture,
                ::testing::HasSubstr(fmt::format("{} of 20 steps replayed", 20 - 4 * shapes)));
    EXPECT_THAT(captured.capture, ::testing::HasSubstr("gradients of weights beside backward"));
  }
}

// Steps whose gradients overflow are not updates. Until the results are read, only the device knows
// which update a step is, and so its learning rate.
TEST(GpuTrainer, SkippedStepsDoNotAdvanceTheSchedule) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  for (const bool mesh : {false, true}) {
    const std::string kind = mesh ? "warmup_stable_decay" : "cosine_with_restarts";
    SCOPED_TRACE(kind);
    auto arguments = arguments_of(output / "late");
    arguments.overwrite_output_dir = true;
    arguments.bf16 = false;
    arguments.fp16 = true;
    arguments.grad_scaler_init_scale = 0x1p20;
    arguments.grad_scaler_growth_interval = 3;  // soon overflows again
    arguments.lr_scheduler_type = kind;
    if (mesh) arguments.lr_scheduler_kwargs = {{"num_decay_steps", 5}};
    arguments.warmup_steps = 4;
    arguments.logging_steps = 7;
    arguments.save_strategy = Interval::steps;
    arguments.save_steps = 14;
    if (mesh) arguments.mp_parameters = {{"ddp", true}};
    const Ran late = train(arguments);
    arguments.output_dir = output / "waited";
    const Ran waited = train(arguments, {.waits = true});
    expect_same(late, waited);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      if (!mesh) {
        EXPECT_EQ(bytes_of(output / "late/checkpoint-14/" + file),
                  bytes_of(output / "waited/checkpoint-14/" + file))
            << file;
      }
    std::int64_t updates = 0;
    const nn::Schedule schedule(kind, arguments.learning_rate, 4, 14,
                                arguments.lr_scheduler_kwargs);
    for (const StepReport& report : waited.recorder->reports) {
      EXPECT_EQ(report.learning_rate, schedule.learning_rate(updates)) << report.step;
      if (std::isfinite(report.grad_norm)) ++updates;
    }
    EXPECT_EQ(late.state.optimizer_steps, updates);
    EXPECT_LT(updates, 12);
    EXPECT_GT(updates, 4);
  }
}

// Captured steps need no more device memory than others, even with an epoch's last batch and
// evaluations in between.
TEST(GpuTrainer, CapturedStepsFitWhereUncapturedOnesDo) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  auto arguments = arguments_of(output / "plain");
  arguments.overwrite_output_dir = true;
  arguments.max_steps = 9;
  arguments.per_device_train_batch_size = 6;  // 40 samples: the seventh batch has 4
  arguments.per_device_eval_batch_size = 6;
  arguments.eval_strategy = Interval::steps;
  arguments.eval_steps = 5;
  arguments.step_capture = StepCaptureMode::off;
  Options options{.length = 32, .layers = 1};
  const Ran plain = train(arguments, options);
  // Finds the smallest sufficient limit, to within a thirty-second.
  std::int64_t enough = plain.held, too_little = enough / 2;
  while (enough - too_little > enough / 32) {
    options.limit = (enough + too_little) / 2;
    try {
      train(arguments, options);
      enough = options.limit;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
      too_little = options.limit;
    }
  }
  arguments.output_dir = output / "captured";
  arguments.step_capture = StepCaptureMode::on;
  options.limit = enough;
  const Ran captured = train(arguments, options);
  expect_same(captured, plain);
  EXPECT_THAT(captured.recorder->messages, ::testing::HasSubstr("it is given back"));
  EXPECT_THAT(captured.recorder->messages,
              ::testing::HasSubstr("no gradients of weights beside backward, they run in line"));
  EXPECT_THAT(captured.capture, ::testing::HasSubstr("5 of 9 steps replayed"));
}

// A run with two samples a step predicts the batch that fits. That batch must fit, and one that is
// an eighth larger must not.
TEST(GpuTrainer, PredictsWhichBatchFits) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  auto arguments = arguments_of(output.path());
  arguments.overwrite_output_dir = true;
  arguments.max_steps = 6;
  arguments.step_capture = StepCaptureMode::on;
  Options options{.length = 32};
  const bool emulated = testing::is_emulated();
  const std::int64_t two = train(arguments, options).held;
  options.limit = 2 * two;
  if (!emulated) {
    // The libraries may take most of the memory, whatever the batch, so allow for twelve samples.
    options.limit = std::numeric_limits<std::int64_t>::max();
    arguments.per_device_train_batch_size = 6;
    options.limit = two + (train(arguments, options).held - two) * 10 / 4;
    arguments.per_device_train_batch_size = 2;
  }
  const std::string said = train(arguments, options).capture;
  std::smatch numbers;
  ASSERT_TRUE(std::regex_search(
      said, numbers,
      std::regex("batches of up to about ([0-9]+) samples fit captured, ([0-9]+) call by call")))
      << said;
  const std::int64_t captured = std::stoll(numbers[1]), direct = std::stoll(numbers[2]);
  EXPECT_GE(captured, direct) << "a plan is no larger than a pool";
  ASSERT_GE(direct, 4) << said;
  ASSERT_LE(direct * 9 / 8 + 1, 40) << "samples; " << said;
  arguments.per_device_train_batch_size = direct;
  // If memory allows, one more step is recorded, with weight gradients beside backward.
  EXPECT_THAT(
      train(arguments, options).capture,
      ::testing::ContainsRegex(emulated ? "[23] of 6 steps replayed" : "of 6 steps replayed"));
  // With a real library, products of another batch may take less scratch memory.
  arguments.per_device_train_batch_size = emulated ? direct * 9 / 8 + 1 : 40;
  arguments.step_capture = StepCaptureMode::off;
  try {
    train(arguments, options);
    ADD_FAILURE() << "no error for a batch of " << arguments.per_device_train_batch_size << "; "
                  << said;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory) << error.what();
  }
}

// Resumes from a checkpoint between two overflows, whose steps had not been read before.
TEST(GpuTrainer, LateF16ResumesFromACheckpoint) {
  SHOAL_NEEDS_GPU();
  for (const bool mesh : {false, true}) {
    SCOPED_TRACE(mesh ? "mesh" : "data_parallel");
    const TemporaryDirectory output;
    auto arguments = arguments_of(output / "whole");
    arguments.bf16 = false;
    arguments.fp16 = true;
    arguments.grad_scaler_init_scale = 0x1p26;
    arguments.grad_scaler_growth_interval = 2;
    arguments.logging_steps = 14;
    arguments.save_strategy = Interval::steps;
    arguments.save_steps = 14;
    if (mesh) arguments.mp_parameters = {{"ddp", true}};
    const Ran whole = train(arguments);
    arguments.output_dir = output / "broken";
    const Ran broken = train(arguments, {.stop_after = 9, .save_after = 9});
    EXPECT_LT(broken.state.optimizer_steps, 9);
    arguments.resume_from_checkpoint = "true";
    const Ran rest = train(arguments);
    EXPECT_EQ(rest.recorder->logs.front(), whole.recorder->logs.front());
    const std::vector<std::string> files =
        mesh ? std::vector<std::string>{"shard-00000-of-00001.safetensors"}
             : std::vector<std::string>{"model.safetensors", "optimizer.safetensors"};
    for (const std::string& file : files)
      EXPECT_EQ(bytes_of(output / "whole/checkpoint-14/" + file),
                bytes_of(output / "broken/checkpoint-14/" + file))
          << file;
  }
}

// Evaluations, checkpoints and a requested end must read all outstanding steps.
TEST(GpuTrainer, OutputsIncludeEveryStep) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  auto arguments = arguments_of(output / "late");
  arguments.gradient_accumulation_steps = 2;
  arguments.eval_strategy = Interval::steps;
  arguments.eval_steps = 3;
  arguments.logging_steps = 100;
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 5;
  const Options options{.stop_after = 13, .save_after = 7};
  const Ran run = train(arguments, options);
  Options waiting = options;
  waiting.waits = true;
  arguments.output_dir = output / "waited";
  const Ran waits = train(arguments, waiting);
  expect_same(run, waits);
  EXPECT_EQ(run.result.global_step, 13);
  EXPECT_GT(run.result.train_loss, 0);
  EXPECT_FALSE(run.recorder->reports[6].known) << "step 7 is requested only after it ran";
  EXPECT_TRUE(run.recorder->reports[8].known) << "step 9 is read for an evaluation";
  // A checkpoint that a callback requested, with steps that had not been read.
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(bytes_of(output / "late/checkpoint-7/" + file),
              bytes_of(output / "waited/checkpoint-7/" + file))
        << file;
  const TrainerState late = read_trainer_state(output / "late/checkpoint-7");
  EXPECT_EQ(late.optimizer_steps, 7);
  EXPECT_EQ(late.total_loss, read_trainer_state(output / "waited/checkpoint-7").total_loss);
}

// A step whose gradients overflow is skipped and does not advance the schedule. It is reported with
// its number, although no thread waited for it.
TEST(GpuTrainer, LaterReportsWhichStepWasSkipped) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  auto arguments = arguments_of(output.path());
  arguments.learning_rate = 1e30;  // the second step's weights overflow
  arguments.warmup_steps = 0;
  arguments.logging_steps = 7;
  const Ran run = train(arguments);
  EXPECT_THAT(run.recorder->messages,
              ::testing::ContainsRegex("the gradient norm of step [2-6] is not finite"));
  EXPECT_LT(run.state.optimizer_steps, run.state.global_step);
}

TEST(GpuTrainer, OffloadingChangesNoBit) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  const Options large{.length = 32, .layers = 5};
  const std::int64_t input = std::int64_t{16} * 32 * 32 * 4;
  ASSERT_EQ(input, 1 << 16) << "the inputs are just large enough to be offloaded";
  auto arguments = arguments_of(output.path());
  arguments.overwrite_output_dir = true;
  arguments.max_steps = 7;
  arguments.bf16 = false;
  arguments.per_device_train_batch_size = 16;
  arguments.gradient_checkpointing = true;
  arguments.step_capture = StepCaptureMode::on;
  const Ran kept = train(arguments, large);
  arguments.activation_offloading = true;
  const Ran offloaded = train(arguments, large);
  expect_same(offloaded, kept);
  EXPECT_LE(offloaded.activations, kept.activations - (5 - 4) * input);
  // The input of each block, and for the head its norm's input and its own.
  EXPECT_EQ(offloaded.pinned.at("activations"), (5 + 2) * input);
  EXPECT_FALSE(kept.pinned.contains("activations"));
  EXPECT_EQ(kept.pinned.at("data"), offloaded.pinned.at("data"));
  EXPECT_THAT(offloaded.memory, ::testing::Contains(::testing::ContainsRegex(
                                    "^  activations +448.00 KiB peak +448.00 KiB$")));
  EXPECT_THAT(offloaded.recorder->messages, ::testing::HasSubstr("step capture: a graph with"));
}

// The error names the limit on locked host memory, and proposes no remedy for device memory.
TEST(GpuTrainer, ExhaustedPinnedMemoryIsReportedByTag) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  auto arguments = arguments_of(output.path());
  arguments.bf16 = false;
  arguments.per_device_train_batch_size = 16;
  arguments.gradient_checkpointing = arguments.activation_offloading = true;
  const Options small{.length = 32, .layers = 5, .pinned_limit = 350 << 10};
  const std::string said = test::error_text([&] { train(arguments, small); });
  EXPECT_THAT(said, ::testing::ContainsRegex(
                        "pinned host memory: no room for 0.0625 MiB of activations: [0-9.]+ MiB of "
                        "0.3 MiB are available .the test's.; held are activations 0.[23] MiB, "
                        "data 0.[0-9]+ MiB"));
  EXPECT_THAT(said, ::testing::Not(::testing::HasSubstr("per_device_train_batch_size")));
}

TEST(GpuTrainer, AnOptimizerInHostMemoryGivesTheSameResult) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  for (const std::string optim : {"adamw", "sgd", "lamb", "lion", "adafactor"}) {
    auto arguments = arguments_of(output / "kept");
    arguments.overwrite_output_dir = true;
    arguments.max_steps = 6;
    arguments.optim = optim;
    arguments.sgd_momentum = 0.9;
    arguments.save_strategy = Interval::steps;
    const Ran kept = train(arguments);
    arguments.output_dir = output / "host";
    arguments.optimizer_offloading = true;
    const Ran host = train(arguments);
    expect_same(host, kept);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(bytes_of(output / "kept/checkpoint-6/" + file),
                bytes_of(output / "host/checkpoint-6/" + file))
          << file;
    EXPECT_GT(kept.optimizer, 0);
    EXPECT_EQ(host.optimizer, 0);
    EXPECT_GE(host.pinned.at("optimizer"), kept.optimizer);
    EXPECT_FALSE(kept.pinned.contains("optimizer"));
    EXPECT_THAT(host.header, ::testing::Contains(::testing::HasSubstr("pinned host memory")));
    // Resumes from its checkpoint.
    arguments.max_steps = 8;
    arguments.overwrite_output_dir = false;
    arguments.resume_from_checkpoint = "true";
    const Ran resumed = train(arguments);
    arguments.output_dir = output / "kept";
    arguments.optimizer_offloading = false;
    expect_same(resumed, train(arguments));
  }
}

}  // namespace
}  // namespace shoal
