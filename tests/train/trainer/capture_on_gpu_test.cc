// Captured steps of two data-parallel ranks on GPUs that the CPU plays. Over `native`, whose hosts
// take part in sums, they are graphs with the sums between; over NCCL's shim
// (SHOAL_TEST_BACKEND=nccl) one graph that holds them. Losses and weights have the bits of steps
// that run call by call.
#include <cmath>
#include <cstdlib>
#include <list>
#include <mutex>

#include "support/temporary_directory.h"
#include "train/trainer/gpu_room.h"
#include "train/trainer/packed_rows.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

using test::bytes_of;
using test::GpuRoom;
using test::run;
using test::RunOptions;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

constexpr std::int64_t kSteps = 12;

std::string backend() {
  const char* const named = std::getenv("SHOAL_TEST_BACKEND");
  return named ? named : "native";
}
bool over_nccl() { return backend() == "nccl"; }

// All of whose positions are targets. short_every: so many samples apart are half as long.
class Even final : public Dataset {
 public:
  explicit Even(std::int64_t short_every) : short_every_(short_every) {}
  std::int64_t size() const override { return 48; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    const std::int64_t length = short_every_ > 0 && index % short_every_ == 0 ? 6 : 12;
    for (std::int64_t t = 0; t < length; ++t)
      sample.input_ids.push_back(static_cast<std::int32_t>((7 * index + t * t) % 59));
    sample.labels = sample.input_ids;
    return sample;
  }

 private:
  std::int64_t short_every_;
};

class Watcher final : public TrainerCallback {
 public:
  bool needs_every_step() const override { return false; }
  void on_step_end(const StepReport&, TrainerControl&) override {
    driver.push_back(device_backend(DeviceType::cuda).statistics());
  }
  void on_log(const nlohmann::ordered_json& record) override {
    if (!record.contains("loss")) return;
    logs.push_back(record);
    logs.back().erase("loader_stall_share");  // what the clock says
  }
  void on_message(const std::string& line) override { messages += line + "\n"; }
  std::vector<DeviceStatistics> driver;
  std::vector<nlohmann::ordered_json> logs;
  std::string messages;
};

struct Ran {
  Watcher watcher;  // of rank 0
  std::string capture;
};

// What a rank has on its device; it outlives the Trainer that run() makes.
struct Place {
  explicit Place(Device device) : room(device) {}
  GpuRoom room;
  std::unique_ptr<collectives::Communicator> communicator;
  Watcher other;
};

Ran train(const TrainingArguments& arguments, const std::shared_ptr<const Dataset>& samples) {
  Ran ran;
  std::list<Place> places;
  std::mutex mutex;
  const auto store = make_hash_store();
  RunOptions options{.ranks = 2};
  options.prepare = [&](CausalLmTask&, TrainerParts& parts) {
    World world;
    world.rank = world.local_rank = parts.communicator->rank();
    world.size = world.local_size = parts.communicator->size();
    Place* place = nullptr;
    {
      const std::lock_guard lock(mutex);
      place = &places.emplace_back(Device::cuda(over_nccl() ? world.rank : 0));
    }
    parts.callbacks = {world.rank == 0 ? &ran.watcher : &place->other};
    place->room.give(parts);
    collectives::CommunicatorOptions on_device;
    on_device.backend = backend();
    on_device.stream = place->room.kernels->stream();
    on_device.deadline_seconds = 60;
    place->communicator = collectives::make_communicator(world, *store, on_device);
    parts.communicator = place->communicator.get();
    parts.train_dataset = samples;
  };
  options.after = [&](Trainer& trainer, int rank) {
    if (rank == 0) ran.capture = trainer.describe_capture();
  };
  run(arguments, options);
  return ran;
}

TrainingArguments arguments_of(const std::string& output, StepCaptureMode capture) {
  TrainingArguments a = test::toy_arguments(output);
  a.max_steps = kSteps;
  a.warmup_steps = 2;
  a.logging_steps = 1;
  a.per_device_train_batch_size = 2;
  a.max_grad_norm = 0.1;
  a.ddp_bucket_cap_mb = 0.02;
  a.ddp_first_bucket_cap_mb = 0.005;
  a.save_strategy = Interval::steps;
  a.save_steps = kSteps;
  a.step_capture = capture;
  return a;
}

// Pieces begin where a bucket's sum is handed over, behind the waits and behind the norm's sum.
std::string graphs() {
  return over_nccl() ? "step capture: a graph with" : "step capture: 7 graphs with";
}

void expect_same(const Ran& captured, const Ran& direct, const TemporaryDirectory& output) {
  // As text, where a norm that is not finite is equal to itself.
  EXPECT_EQ(nlohmann::ordered_json(captured.watcher.logs).dump(),
            nlohmann::ordered_json(direct.watcher.logs).dump());
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(bytes_of(output / fmt::format("on/checkpoint-{}/{}", kSteps, file)),
              bytes_of(output / fmt::format("off/checkpoint-{}/{}", kSteps, file)))
        << file;
  EXPECT_THAT(direct.watcher.messages, Not(HasSubstr("step capture")));
}

// Both ways of the same run.
std::pair<Ran, Ran> both(
    const TemporaryDirectory& output, const std::function<void(TrainingArguments&)>& change = {},
    const std::shared_ptr<const Dataset>& samples = std::make_shared<Even>(0)) {
  std::pair<Ran, Ran> ran;
  for (const bool captured : {true, false}) {
    TrainingArguments a = arguments_of(output / (captured ? "on" : "off"),
                                       captured ? StepCaptureMode::on : StepCaptureMode::off);
    if (change) change(a);
    (captured ? ran.first : ran.second) = train(a, samples);
  }
  expect_same(ran.first, ran.second, output);
  return ran;
}

TEST(CaptureOnGpu, TwoRanksHaveTheBitsOfStepsCallByCall) {
  const TemporaryDirectory output;
  const auto [captured, direct] = both(output);
  EXPECT_THAT(captured.watcher.messages,
              AllOf(HasSubstr(graphs()), Not(HasSubstr("call by call:"))));
  EXPECT_THAT(captured.capture, HasSubstr("9 of 12 steps replayed"));
}

TEST(CaptureOnGpu, AccumulatedGradientsAreSummedOnce) {
  const TemporaryDirectory output;
  const auto [captured, direct] =
      both(output, [](TrainingArguments& a) { a.gradient_accumulation_steps = 2; });
  EXPECT_THAT(captured.watcher.messages, HasSubstr(graphs()));
  EXPECT_THAT(captured.capture, HasSubstr("9 of 12 steps replayed"));
}

// An overflow on one rank leaves a replayed step out on both.
TEST(CaptureOnGpu, F16OverflowsLeaveReplayedStepsOut) {
  const TemporaryDirectory output;
  const auto [captured, direct] = both(output, [](TrainingArguments& a) {
    a.fp16 = true;
    a.grad_scaler_init_scale = 0x1p24;
    a.grad_scaler_growth_interval = 2;
  });
  EXPECT_THAT(captured.capture, HasSubstr("9 of 12 steps replayed"));
  const auto left_out = [&](std::size_t step) {
    return !std::isfinite(captured.watcher.logs[step - 1]["grad_norm"].get<double>());
  };
  EXPECT_TRUE(left_out(6) && left_out(11)) << "replayed";
  EXPECT_FALSE(left_out(12));
}

// Each shape is captured once it has come three times; over NCCL each pair of shapes, as a graph
// with its sums is of all ranks.
TEST(CaptureOnGpu, ShapesThatChangeAreCapturedEach) {
  const TemporaryDirectory output;
  const auto [captured, direct] = both(
      output, [](TrainingArguments& a) { a.per_device_train_batch_size = 1; },
      std::make_shared<Even>(3));
  EXPECT_THAT(captured.watcher.messages, HasSubstr(graphs()));
  EXPECT_THAT(captured.capture, HasSubstr(" of 12 steps replayed"));
}

// Where texts begin is read where it lies, not written into the graph; on a V100 by products.
TEST(CaptureOnGpu, PackedRowsChangeFromStepToStep) {
  const TemporaryDirectory output;
  const auto [captured, direct] =
      both(output, {}, std::make_shared<test::PackedRows>(48, test::kToyVocabulary));
  EXPECT_THAT(captured.watcher.messages, HasSubstr(graphs()));
  EXPECT_THAT(captured.capture, HasSubstr("9 of 12 steps replayed"));
}

TEST(CaptureOnGpu, SteadyStepsWaitNoMoreThanCallByCall) {
  const TemporaryDirectory output;
  const auto [captured, direct] =
      both(output, [](TrainingArguments& a) { a.logging_steps = kSteps; });
  const auto waits = [](const Ran& ran, std::size_t first, std::size_t last) {
    return ran.watcher.driver[last].synchronizations - ran.watcher.driver[first].synchronizations;
  };
  EXPECT_EQ(waits(captured, 6, 10), 0);
  EXPECT_EQ(waits(direct, 6, 10), 0);
  const DeviceStatistics &before = captured.watcher.driver[6], &after = captured.watcher.driver[10];
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.deallocations, before.deallocations);
  EXPECT_EQ(after.blocking_copies, before.blocking_copies);
}

}  // namespace
}  // namespace shoal
