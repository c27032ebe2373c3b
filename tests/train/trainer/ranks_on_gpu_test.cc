// Two ranks of the Trainer on an emulated GPU, or on a real one (gpu_train_ranks_test): steps whose
// results are read later, on every mesh axis.
#include <filesystem>
#include <list>
#include <mutex>

#include "gpu/gpu.h"
#include "support/temporary_directory.h"
#include "train/trainer/gpu_fixture.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal {
namespace {

using test::GpuFixture;
using test::Outcome;
using test::run;
using test::RunOptions;
using testing::TemporaryDirectory;

constexpr std::int64_t kSteps = 8;

struct Layout {
  const char* name;
  nlohmann::json mesh;  // mp_parameters
  int replicas = 1;     // with different samples
  bool f16 = false;
  friend void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }
};

// Notes what rank 0 logs and how often it waits for the device.
class Watcher final : public TrainerCallback {
 public:
  explicit Watcher(bool needs) : needs_(needs) {}
  bool needs_every_step() const override { return needs_; }
  void on_step_end(const StepReport& report, TrainerControl&) override {
    reports.push_back(report);
    driver.push_back(device_backend(DeviceType::cuda).statistics());
  }
  void on_log(const nlohmann::ordered_json& record) override {
    if (!record.contains("loss")) return;
    logs.push_back(record);
    logs.back().erase("loader_stall_share");  // depends on timing
  }
  std::vector<StepReport> reports;
  std::vector<DeviceStatistics> driver;
  std::vector<nlohmann::ordered_json> logs;

 private:
  bool needs_;
};

struct Ran {
  Outcome outcome;
  Watcher watcher;
  std::list<GpuFixture> rooms;  // they outlive the Trainers that run() makes
};

struct Options {
  bool waits = false;
  std::function<void(TrainingArguments&)> change = {};
  std::string initial = {};  // a directory of weights; empty: none
};

Ran train(const Layout& layout, const std::string& output, const Options& how) {
  Ran ran{{}, Watcher(how.waits), {}};
  std::list<std::unique_ptr<collectives::Communicator>> communicators;
  std::list<Watcher> others;
  std::mutex mutex;
  const auto store = make_hash_store();
  RunOptions options{.ranks = 2, .samples = 32, .header = true, .initial_weights = how.initial};
  options.config.num_attention_heads = 4;
  options.prepare = [&](CausalLmTask&, TrainerParts& parts) {
    World world;
    world.rank = world.local_rank = parts.communicator->rank();
    world.size = world.local_size = parts.communicator->size();
    GpuFixture* room = nullptr;
    std::unique_ptr<collectives::Communicator>* communicator = nullptr;
    {
      const std::lock_guard lock(mutex);
      room = &ran.rooms.emplace_back();
      communicator = &communicators.emplace_back();
      parts.callbacks = {world.rank == 0 ? &ran.watcher : &others.emplace_back(false)};
    }
    room->give(parts);
    collectives::CommunicatorOptions on_device;
    on_device.stream = room->kernels->stream();
    on_device.pinned = &room->pinned;
    *communicator = collectives::make_communicator(world, *store, on_device);
    parts.communicator = communicator->get();
  };
  TrainingArguments arguments = test::toy_arguments(output);
  arguments.max_steps = kSteps;
  arguments.logging_steps = 4;
  arguments.warmup_steps = 2;
  arguments.per_device_train_batch_size = 4 / layout.replicas;
  arguments.fp16 = layout.f16;
  if (layout.f16) arguments.grad_scaler_init_scale = 0x1p22;  // the first steps overflow
  arguments.mp_parameters = layout.mesh;
  if (how.change) how.change(arguments);
  ran.outcome = run(arguments, options);
  return ran;
}

class RanksOnGpu : public ::testing::TestWithParam<Layout> {};

TEST_P(RanksOnGpu, ReadStepResultsLate) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  const Ran late = train(GetParam(), output / "late", {}),
            waited = train(GetParam(), output / "waited", {.waits = true});
  ASSERT_EQ(late.watcher.logs.size(), 2U);
  EXPECT_EQ(late.watcher.logs, waited.watcher.logs);
  EXPECT_EQ(late.outcome.result.train_loss, waited.outcome.result.train_loss);
  for (std::size_t i = 0; i < kSteps; ++i) {
    EXPECT_EQ(late.watcher.reports[i].known, i % 4 == 3) << i;
    EXPECT_TRUE(waited.watcher.reports[i].known) << i << " (rank 0 asks, so rank 1 waits)";
  }
  // Steps 4 and 8 log. The ranks agree before each step. So while one rank is between the ends of
  // steps 5 and 7, the other is between those of steps 4 and 7.
  EXPECT_EQ(late.watcher.driver[6].synchronizations, late.watcher.driver[4].synchronizations);
  EXPECT_GT(waited.watcher.driver[6].synchronizations, waited.watcher.driver[4].synchronizations);
}

std::int64_t held(const Ran& ran, MemoryTag tag, bool pinned) {
  std::int64_t all = 0;
  for (const GpuFixture& room : ran.rooms)
    all += (pinned ? room.pinned : room.memory).usage(tag).peak;
  return all;
}

void expect_same_files(const std::string& a, const std::string& b) {
  int parts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(a)) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".safetensors")) continue;
    EXPECT_TRUE(test::bytes_of(a + "/" + name) == test::bytes_of(b + "/" + name)) << name;
    ++parts;
  }
  EXPECT_GT(parts, 0);
}

// All of a rank's masters and moments, or its shard of them, are in host memory, where the
// device reads and writes them. The bits are the same, also after resuming from a
// checkpoint of the other kind.
TEST_P(RanksOnGpu, HaveTheirOptimizersInTheHostsMemory) {
  SHOAL_NEEDS_GPU();
  for (const std::string optim : {"adamw", "lamb", "adafactor"}) {
    const TemporaryDirectory output;
    const auto run = [&](const char* to, bool offloads, const char* from = nullptr) {
      return train(GetParam(), output / to, {.change = [&](TrainingArguments& a) {
                     a.optim = optim;
                     a.optimizer_offloading = offloads;
                     a.bf16 = !a.fp16;
                     if (optim == "adamw") a.step_capture = StepCaptureMode::on;
                     if (a.fp16) a.grad_scaler_init_scale = 0x1p10;
                     a.save_strategy = Interval::steps;
                     a.save_steps = 4;
                     if (from == nullptr) return;
                     a.resume_from_checkpoint = output / from + "/checkpoint-4";
                   }});
    };
    const Ran kept = run("kept", false), host = run("host", true);
    EXPECT_EQ(host.watcher.logs, kept.watcher.logs);
    expect_same_files(output / "kept/checkpoint-8", output / "host/checkpoint-8");
    EXPECT_EQ(held(host, MemoryTag::optimizer, true), held(kept, MemoryTag::optimizer, false));
    EXPECT_EQ(held(host, MemoryTag::optimizer, false), 0);
    EXPECT_EQ(held(kept, MemoryTag::optimizer, true), 0);
    EXPECT_THAT(host.outcome.header, ::testing::ContainsRegex("optimizer state: .* in pinned host "
                                                              "memory .optimizer_offloading."));
    EXPECT_THAT(kept.outcome.header, ::testing::Not(::testing::HasSubstr("pinned host memory")));
    run("host_then_kept", false, "host");
    run("kept_then_host", true, "kept");
    for (const char* to : {"host_then_kept", "kept_then_host"})
      expect_same_files(output / "kept/checkpoint-8", output / to + std::string("/checkpoint-8"));
  }
}

// The host must not load a checkpoint in parts into memory that queued device work still writes:
// the masters' first values are queued.
TEST(HostMasters, BeginWithTheNumbersOfACheckpointInParts) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  const Layout stages{
      "stages", {{"pipeline_parallel_degree", 2}, {"microbatches", 2}, {"skip_tracing", true}}};
  const auto run = [&](const Layout& layout, const char* to, bool offloads, const char* from) {
    const std::string initial = from == nullptr ? "" : output / from + "/checkpoint-8";
    return train(layout, output / to,
                 {.change =
                      [&](TrainingArguments& a) {
                        a.bf16 = true;
                        a.optimizer_offloading = offloads;
                        a.save_strategy = Interval::steps;
                        a.save_steps = 8;
                      },
                  .initial = initial});
  };
  run(stages, "parts", false, nullptr);
  for (const Layout& layout : {stages, Layout{"replicas", nlohmann::json::object(), 2}}) {
    SCOPED_TRACE(layout.name);
    const std::string name = layout.name;
    const Ran kept = run(layout, (name + "_kept").c_str(), false, "parts"),
              host = run(layout, (name + "_host").c_str(), true, "parts");
    EXPECT_EQ(host.watcher.logs, kept.watcher.logs);
    expect_same_files(output / (name + "_kept") + "/checkpoint-8",
                      output / (name + "_host") + "/checkpoint-8");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, RanksOnGpu,
    ::testing::Values(
        Layout{"replicas_of_f16", nlohmann::json::object(), 2, true},
        Layout{"parts_of_layers", {{"ddp", true}, {"tensor_parallel_degree", 2}}, 2},
        Layout{"stages",
               {{"pipeline_parallel_degree", 2}, {"microbatches", 2}, {"skip_tracing", true}}},
        Layout{"sharded_f16", {{"ddp", true}, {"sharding_strategy", "SHARD_GRAD_OP"}}, 2, true},
        Layout{"sharded_values",
               {{"ddp", true},
                {"sharded_data_parallel_degree", 2},
                {"sdp_param_persistence_threshold", 100}},
               2}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace shoal
