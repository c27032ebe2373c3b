// Captured steps of data-parallel ranks and of meshes, on emulated GPUs and on a real one that the
// ranks share (gpu_train_ranks_test). Over `native`, host threads take part in the collectives, so
// a step is several graphs with host work between them. Over NCCL's shim (SHOAL_TEST_BACKEND=nccl)
// it is one graph that holds the collectives too. Losses and weights have the same bits as steps
// that run call by call.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <list>
#include <mutex>
#include <optional>

#include "gpu/gpu.h"
#include "support/temporary_directory.h"
#include "train/trainer/gpu_fixture.h"
#include "train/trainer/packed_rows.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/tasks/encoder.h"

namespace shoal {
namespace {

using test::bytes_of;
using test::GpuFixture;
using test::run;
using test::RunOptions;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

constexpr std::int64_t kSteps = 12;

std::string backend() {
  const char* const named = std::getenv("SHOAL_TEST_BACKEND");
  return named ? named : "native";
}
bool over_nccl() { return backend() == "nccl"; }

// Ranks share a device over `native`, and have one each over NCCL.
int device_of(int rank) { return over_nccl() || std::getenv("SHOAL_EMULATED_GPUS") ? rank : 0; }

// All positions are targets. If short_every is set, every short_every-th sample is half as long.
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
    logs.back().erase("loader_stall_share");  // depends on timing
  }
  void on_message(const std::string& line) override { messages += line + "\n"; }
  std::vector<DeviceStatistics> driver;
  std::vector<nlohmann::ordered_json> logs;
  std::string messages;
};

// Options of a run that are not TrainingArguments.
struct Rest {
  std::int64_t short_every = 0;
  std::shared_ptr<const Dataset> samples = {};  // none: Even(short_every)
  int ranks = 2;
  std::function<void(TrainerParts&)> prepare = {};
  std::int64_t width = 24;                        // GPT-2's width
  std::optional<nn::EncoderConfig> encoder = {};  // an encoder that classifies texts; none: GPT-2
  std::vector<std::string>* errors = nullptr;     // receives what each rank threw; null: rethrown
};

struct Ran {
  Watcher watcher;  // of rank 0
  std::string capture, header;
  std::vector<std::string> of_ranks;                   // each rank's capture
  std::vector<parallel::OffloadStatistics> offloaded;  // by rank; zero if nothing is offloaded
};

// A rank's memory and model on its device. They outlive the Trainer that run() makes.
struct Place {
  explicit Place(Device device) : room(device) {}
  GpuFixture room;
  std::unique_ptr<collectives::Communicator> communicator;
  Watcher other;
  std::unique_ptr<EncoderWithHead> encoder;  // its parameters are in that memory
};

Ran train(const TrainingArguments& arguments, const Rest& rest = {}) {
  Ran ran;
  ran.of_ranks.resize(static_cast<std::size_t>(rest.ranks));
  ran.offloaded.resize(static_cast<std::size_t>(rest.ranks));
  std::list<Place> places;
  std::mutex mutex;
  const auto store = make_hash_store();
  RunOptions options{.ranks = rest.ranks};
  options.config.num_attention_heads = 4;  // so that two ranks can share the heads
  options.config.hidden_size = rest.width;
  options.prepare = [&](CausalLmTask&, TrainerParts& parts) {
    World world;
    world.rank = world.local_rank = parts.communicator->rank();
    world.size = world.local_size = parts.communicator->size();
    Place* place = nullptr;
    {
      const std::lock_guard lock(mutex);
      place = &places.emplace_back(Device::cuda(device_of(world.rank)));
    }
    parts.callbacks = {world.rank == 0 ? &ran.watcher : &place->other};
    place->room.give(parts);
    collectives::CommunicatorOptions on_device;
    on_device.backend = backend();
    on_device.stream = place->room.kernels->stream();
    on_device.deadline_seconds = 60;
    place->communicator = collectives::make_communicator(world, *store, on_device);
    parts.communicator = place->communicator.get();
    parts.train_dataset =
        rest.samples ? rest.samples : std::make_shared<const Even>(rest.short_every);
    if (rest.encoder) {
      place->encoder = std::make_unique<EncoderWithHead>(*rest.encoder,
                                                         nn::EncoderTask::sequence_classification);
      parts.task = place->encoder.get();
    }
    if (rest.prepare) rest.prepare(parts);
  };
  options.after = [&](Trainer& trainer, int rank) {
    ran.of_ranks.at(static_cast<std::size_t>(rank)) = trainer.describe_capture();
    ran.offloaded.at(static_cast<std::size_t>(rank)) =
        trainer.offloaded().value_or(parallel::OffloadStatistics{});
    if (rank == 0) ran.capture = trainer.describe_capture();
  };
  options.header = true;
  if (rest.errors)
    *rest.errors = test::errors_of(arguments, options);
  else
    ran.header = run(arguments, options).header;
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

// A graph begins where a bucket's sum is submitted, after the waits, and after the norm's sum.
std::string graphs() {
  return over_nccl() ? "step capture: a graph with" : "step capture: 7 graphs with";
}

void expect_same(const Ran& captured, const Ran& direct, const TemporaryDirectory& output) {
  // Compared as text, because a norm of NaN is not equal to itself.
  EXPECT_EQ(nlohmann::ordered_json(captured.watcher.logs).dump(),
            nlohmann::ordered_json(direct.watcher.logs).dump());
  namespace fs = std::filesystem;
  const std::string last = fmt::format("checkpoint-{}", kSteps);
  int tensors = 0;
  for (const auto& entry : fs::recursive_directory_iterator(output / ("off/" + last))) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string file =
        (fs::path(last) / fs::relative(entry.path(), output / ("off/" + last))).string();
    EXPECT_EQ(bytes_of(output / ("on/" + file)), bytes_of(entry.path())) << file;
    ++tensors;
  }
  EXPECT_GE(tensors, 2) << "the model and the optimizer's state, whole or in each rank's parts";
  EXPECT_THAT(direct.watcher.messages, Not(HasSubstr("step capture")));
}

// The same run captured and call by call.
std::pair<Ran, Ran> both(const TemporaryDirectory& output,
                         const std::function<void(TrainingArguments&)>& change = {},
                         const Rest& rest = {}) {
  std::pair<Ran, Ran> ran;
  for (const bool captured : {true, false}) {
    TrainingArguments a = arguments_of(output / (captured ? "on" : "off"),
                                       captured ? StepCaptureMode::on : StepCaptureMode::off);
    if (change) change(a);
    (captured ? ran.first : ran.second) = train(a, rest);
  }
  expect_same(ran.first, ran.second, output);
  return ran;
}

TEST(CaptureOnGpu, TwoRanksHaveTheBitsOfStepsCallByCall) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  const auto [captured, direct] = both(output);
  EXPECT_THAT(captured.watcher.messages,
              AllOf(HasSubstr(graphs()), Not(HasSubstr("call by call:"))));
  EXPECT_THAT(captured.capture, HasSubstr("9 of 12 steps replayed"));
}

TEST(CaptureOnGpu, AccumulatedGradientsAreSummedOnce) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  const auto [captured, direct] =
      both(output, [](TrainingArguments& a) { a.gradient_accumulation_steps = 2; });
  EXPECT_THAT(captured.watcher.messages, HasSubstr(graphs()));
  EXPECT_THAT(captured.capture, HasSubstr("9 of 12 steps replayed"));
}

// A rank generates texts between replays, in the memory that they leave (samples.jsonl).
TEST(CaptureOnGpu, TextsBetweenReplaysChangeNothing) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  const auto evaluates = [](TrainingArguments& a) {
    a.eval_strategy = Interval::steps;
    a.eval_steps = 5;
  };
  const Rest rest{.prepare = [](TrainerParts& parts) {
    parts.eval_dataset = std::make_shared<Even>(0);
    parts.samples.prompts = {{.ids = {1, 2, 3}}, {.ids = {4}}};
    parts.samples.text_of = [](auto, auto ids) { return fmt::format("{}", fmt::join(ids, " ")); };
    parts.samples.options.max_new_tokens = 5;
  }};
  const auto [captured, direct] = both(output, evaluates, rest);
  EXPECT_THAT(captured.capture, HasSubstr("9 of 12 steps replayed"));
  EXPECT_EQ(bytes_of(output / "on/samples.jsonl"), bytes_of(output / "off/samples.jsonl"));
  EXPECT_THAT(bytes_of(output / "on/samples.jsonl"), HasSubstr("{\"step\":12,\"index\":1,"));
  TrainingArguments silent = arguments_of(output / "silent", StepCaptureMode::on);
  EXPECT_EQ(train(silent).watcher.logs, captured.watcher.logs);
}

// An overflow on one rank makes both ranks skip the replayed step.
TEST(CaptureOnGpu, F16OverflowsLeaveReplayedStepsOut) {
  SHOAL_NEEDS_GPU();
  for (const std::string optim : {"adamw", "adafactor"}) {
    SCOPED_TRACE(optim);
    const TemporaryDirectory output;
    const auto [captured, direct] = both(output, [&](TrainingArguments& a) {
      a.optim = optim;
      a.fp16 = true;
      a.grad_scaler_init_scale = 0x1p24;
      a.grad_scaler_growth_interval = 2;
    });
    EXPECT_THAT(captured.capture, HasSubstr("9 of 12 steps replayed"));
    const auto left_out = [&](std::size_t step) {
      return !std::isfinite(captured.watcher.logs[step - 1]["grad_norm"].get<double>());
    };
    int replayed = 0;
    for (std::size_t step = 5; step <= kSteps; ++step) replayed += left_out(step);
    EXPECT_TRUE(replayed > 0 && replayed < kSteps - 4) << replayed;
    if (!testing::is_emulated() || optim != "adamw") continue;  // may overflow at another step
    EXPECT_TRUE(left_out(6) && left_out(11));
    EXPECT_FALSE(left_out(12));
  }
}

// Each shape is captured when it has occurred three times. Over NCCL this holds for each pair of
// shapes, because a graph that holds sums involves all ranks.
TEST(CaptureOnGpu, ShapesThatChangeAreCapturedEach) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  const auto [captured, direct] = both(
      output, [](TrainingArguments& a) { a.per_device_train_batch_size = 1; }, {.short_every = 3});
  EXPECT_THAT(captured.watcher.messages, HasSubstr(graphs()));
  EXPECT_THAT(captured.capture, HasSubstr(" of 12 steps replayed"));
}

// The graph reads the offsets of texts from memory rather than baking them in. A V100
// uses products instead.
TEST(CaptureOnGpu, PackedRowsChangeFromStepToStep) {
  SHOAL_NEEDS_GPU();
  const TemporaryDirectory output;
  const auto [captured, direct] =
      both(output, {}, {.samples = std::make_shared<test::PackedRows>(48, test::kToyVocabulary)});
  EXPECT_THAT(captured.watcher.messages, HasSubstr(graphs()));
  EXPECT_THAT(captured.capture, HasSubstr("9 of 12 steps replayed"));
}

TEST(CaptureOnGpu, SteadyStepsWaitNoMoreThanCallByCall) {
  SHOAL_NEEDS_GPU();
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

struct Mesh {
  std::string name;
  nlohmann::json parameters;  // mp_parameters
  std::string precision = "f32";
  int ranks = 2;
  bool full = false;  // only with `./dev test --full`: other cases cover its parts
  bool has_stages() const { return parameters.contains("pipeline_parallel_degree"); }
  void give(TrainingArguments& a) const {
    a.mp_parameters = parameters;
    a.per_device_train_batch_size = 4;
    a.bf16 = precision == "bf16";
    a.fp16 = precision == "f16";
    if (!a.fp16) return;
    // The first steps overflow, and so do some replayed ones.
    a.grad_scaler_init_scale = 0x1p24;
    a.grad_scaler_growth_interval = 2;
  }
  friend void PrintTo(const Mesh& mesh, std::ostream* out) { *out << mesh.name; }
};

const nlohmann::json kParts = {{"ddp", true}, {"tensor_parallel_degree", 2}},
                     kSequences = {{"ddp", true},
                                   {"tensor_parallel_degree", 2},
                                   {"prescaled_batch", true}},
                     kSpeed = {{"ddp", true},
                               {"tensor_parallel_degree", 2},
                               {"prescaled_batch", true},
                               {"optimize", "speed"}},
                     kStages = {{"pipeline_parallel_degree", 2},
                                {"microbatches", 2},
                                {"skip_tracing", true}};

// `a` with the other's keys added.
nlohmann::json with(nlohmann::json a, const nlohmann::json& other) {
  a.update(other);
  return a;
}

nlohmann::json sharded(int level) {
  if (level == 1) return {{"ddp", true}, {"shard_optimizer_state", true}};
  if (level == 2) return {{"ddp", true}, {"sharding_strategy", "SHARD_GRAD_OP"}};
  return {
      {"ddp", true}, {"sharded_data_parallel_degree", 2}, {"sdp_param_persistence_threshold", 100}};
}

// MiCS: four ranks, of which pairs share one copy of the state.
nlohmann::json in_pairs(int level) {
  return with(sharded(3),
              {{"sharding_strategy", level == 2 ? "_HYBRID_SHARD_ZERO2" : "HYBRID_SHARD"}});
}

class MeshCaptureOnGpu : public ::testing::TestWithParam<Mesh> {
 protected:
  void SetUp() override {
    SHOAL_NEEDS_GPU();
    if (over_nccl() && (GetParam().has_stages() || GetParam().ranks > 2))
      GTEST_SKIP() << "pipelines do not run over NCCL, and its shim has two GPUs";
    if (GetParam().full && testing::has_little_time())
      GTEST_SKIP() << "only ./dev test --full runs it";
  }
};

TEST_P(MeshCaptureOnGpu, HasTheBitsOfStepsCallByCall) {
  const Mesh& mesh = GetParam();
  const TemporaryDirectory output;
  const auto [captured, direct] =
      both(output, [&](TrainingArguments& a) { mesh.give(a); }, {.ranks = mesh.ranks});
  EXPECT_THAT(captured.watcher.messages,
              AllOf(HasSubstr("step capture:"), Not(HasSubstr("call by call:")),
                    Not(HasSubstr("though step_capture is on"))));
  EXPECT_THAT(captured.watcher.messages,
              over_nccl() ? HasSubstr("a graph with") : HasSubstr(" graphs with"));
  EXPECT_THAT(captured.of_ranks, Each(HasSubstr("9 of 12 steps replayed")));
  EXPECT_THAT(captured.of_ranks,
              Each(ContainsRegex("of [0-9.]+ GiB for a step of this rank, microbatches of up to "
                                 "about [1-9][0-9]+ rows fit captured, [1-9][0-9]+ call by call")));
  if (testing::is_emulated()) {
    // Less than a million rows fit into 4 GiB, because blocks grow with the rows.
    EXPECT_THAT(captured.of_ranks, Each(ContainsRegex("about [1-9][0-9]{1,5} rows fit")));
  }
  int left_out = 0;
  for (const auto& log : captured.watcher.logs)
    left_out += !std::isfinite(log["grad_norm"].get<double>());
  EXPECT_EQ(left_out > 3, mesh.precision == "f16") << "some replayed steps overflow";
}

// The step's first layer gathers the text offsets of all ranks' rows. Each replay must gather them
// again, because later layers read them.
TEST(CaptureOnGpu, PackedRowsOfBatchesInParts) {
  const TemporaryDirectory output;
  const auto [captured, direct] =
      both(output, [](TrainingArguments& a) { Mesh{.name = "", .parameters = kParts}.give(a); },
           {.samples = std::make_shared<test::PackedRows>(96, test::kToyVocabulary), .ranks = 2});
  EXPECT_THAT(captured.of_ranks, Each(HasSubstr("9 of 12 steps replayed")));
}

TEST_P(MeshCaptureOnGpu, SteadyStepsAskTheDriverForNothing) {
  const Mesh& mesh = GetParam();
  if (mesh.precision != "f32") GTEST_SKIP() << "f32 covers the same calls";
  const TemporaryDirectory output;
  TrainingArguments a = arguments_of(output / "on", StepCaptureMode::on);
  mesh.give(a);
  a.logging_steps = kSteps;
  const Ran ran = train(a, {.ranks = mesh.ranks});
  const DeviceStatistics &before = ran.watcher.driver[6], &after = ran.watcher.driver[10];
  EXPECT_EQ(after.synchronizations, before.synchronizations);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.deallocations, before.deallocations);
  EXPECT_EQ(after.blocking_copies, before.blocking_copies);
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, MeshCaptureOnGpu,
    ::testing::Values(Mesh{"tp2", kParts}, Mesh{"tp2_sequence", kSequences},
                      Mesh{"tp2_speed", kSpeed, "f32", 2, true},
                      Mesh{"tp2_bf16", kSequences, "bf16", 2, true}, Mesh{"tp2_f16", kParts, "f16"},
                      Mesh{"sharded1", sharded(1), "f32", 2, true}, Mesh{"sharded2", sharded(2)},
                      Mesh{"sharded3", sharded(3)},
                      Mesh{"sharded3_bf16", sharded(3), "bf16", 2, true},
                      Mesh{"sharded2_f16", sharded(2), "f16"}, Mesh{"pp2", kStages},
                      Mesh{"pp2_bf16", kStages, "bf16", 2, true}, Mesh{"pp2_f16", kStages, "f16"},
                      Mesh{"tp2_sharded3", with(kSequences, sharded(3)), "f32", 4},
                      Mesh{"pp2_sharded2", with(kStages, sharded(2)), "f32", 4},
                      Mesh{"sharded2_in_pairs", in_pairs(2), "f32", 4, true},
                      Mesh{"sharded3_in_pairs", in_pairs(3), "f32", 4},
                      Mesh{"tp2_pp2", with(kParts, kStages), "f32", 4, true}),
    [](const auto& test) { return test.param.name; });

// Evaluations use the same groups and memory, and drop gathered parameters. Batches have two
// shapes, and each step has two batches.
TEST(MeshCaptureBetween, OtherWorkAndOtherShapesChangeNothing) {
  SHOAL_NEEDS_GPU();
  for (const nlohmann::json& parameters : {sharded(3), kParts, kStages}) {
    if (over_nccl() && parameters == kStages) continue;
    SCOPED_TRACE(parameters.dump());
    const TemporaryDirectory output;
    const auto [captured, direct] = both(output,
                                         [&](TrainingArguments& a) {
                                           a.mp_parameters = parameters;
                                           a.gradient_accumulation_steps = 2;
                                           a.eval_strategy = Interval::steps;
                                           a.eval_steps = 5;
                                         },
                                         {.short_every = 8, .prepare = [](TrainerParts& parts) {
                                            parts.eval_dataset = std::make_shared<Even>(0);
                                          }});
    EXPECT_THAT(captured.of_ranks, Each(HasSubstr(" of 12 steps replayed")));
    EXPECT_THAT(captured.watcher.messages, Not(HasSubstr("call by call:")));
  }
}

// All ranks fall back together, with one line that says why.
TEST(MeshCaptureBetween, StepsThatCannotBeCapturedRunCallByCall) {
  SHOAL_NEEDS_GPU();
  for (const std::string optim : {"lamb", "adafactor"}) {  // sums of sharded parameters
    SCOPED_TRACE(optim);
    const TemporaryDirectory output;
    const auto [captured, direct] = both(output, [&](TrainingArguments& a) {
      a.mp_parameters = sharded(2);
      a.optim = optim;
    });
    EXPECT_THAT(captured.watcher.messages,
                HasSubstr("step capture: steps of this kind run call by call: the host reads "
                          "numbers in the middle of the update"));
    EXPECT_THAT(captured.capture, Not(HasSubstr("replayed")));
    EXPECT_THAT(captured.header, Not(HasSubstr("though step_capture is on")));
  }
}

class Classes final : public Dataset {
 public:
  std::int64_t size() const override { return 48; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    for (std::int64_t t = 0; t < 12; ++t)
      sample.input_ids.push_back(static_cast<std::int32_t>((7 * index + t * t) % 59));
    sample.labels = {static_cast<std::int32_t>(index % 2)};
    return sample;
  }
};

TEST(MeshCaptureBetween, HeadsWhoseTargetsTheHostReadsAreNotCaptured) {
  SHOAL_NEEDS_GPU();
  nn::EncoderConfig config = nn::EncoderConfig::of("bert");
  config.vocab_size = test::kToyVocabulary;
  config.hidden_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.intermediate_size = 40;
  config.max_position_embeddings = 16;
  config.num_labels = 2;
  const TemporaryDirectory output;
  const auto [captured, direct] =
      both(output, [&](TrainingArguments& a) { a.mp_parameters = kParts; },
           {.prepare =
                [&](TrainerParts& parts) {
                  parts.train_dataset = std::make_shared<Classes>();
                  parts.collator = std::make_shared<PaddingCollator>(0, 1, LabelsOf::sample);
                },
            .encoder = config});
  EXPECT_THAT(captured.header, HasSubstr("steps run call by call, though step_capture is on: "
                                         "with tensor_parallel_degree > 1 the host reads"));
  EXPECT_EQ(captured.capture, "");
}

// Over native, offload copies would still be in flight where graphs end, and CUDA refuses to end a
// capture with unjoined work. NCCL's single graph holds the copies.
TEST(MeshCaptureBetween, OffloadingRunsCallByCallOverNative) {
  for (const nlohmann::json& parameters : {nlohmann::json(), kParts}) {
    SCOPED_TRACE(parameters.dump());
    const TemporaryDirectory output;
    TrainingArguments a = arguments_of(output / "on", StepCaptureMode::on);
    a.mp_parameters = parameters;
    a.max_steps = 4;
    a.save_strategy = Interval::no;
    a.gradient_checkpointing = a.activation_offloading = true;
    a.per_device_train_batch_size = 8;
    constexpr std::int64_t kWidth = 192, kStream = 8 * 12 * kWidth * 4;
    static_assert(kStream >= std::int64_t{1} << 16, "what is smaller stays");
    const Ran ran = train(a, {.width = kWidth});
    for (const parallel::OffloadStatistics& rank : ran.offloaded) {
      // Each step offloads two blocks' inputs and the head's two tensors. A replayed step counts
      // once, at its capture.
      EXPECT_EQ(rank.tensors, 4 * (2 + 2));
      EXPECT_EQ(rank.bytes, rank.tensors * kStream);
    }
    const auto said = HasSubstr(
        "note: steps run call by call, though step_capture is on: what is "
        "offloaded is on its way");
    if (over_nccl()) {
      EXPECT_THAT(ran.capture, HasSubstr("1 of 4 steps replayed"));
      EXPECT_THAT(ran.header, Not(said));
    } else {
      EXPECT_EQ(ran.capture, "");
      EXPECT_THAT(ran.header, said);
    }
  }
}

class Failing final : public TrainerCallback {
 public:
  bool needs_every_step() const override { return false; }
  void on_step_end(const StepReport& report, TrainerControl&) override {
    if (report.step == 8) throw Error(ErrorCode::internal, "the test's own failure");
  }
};

// The other ranks wait for the failing one in their replays.
TEST(MeshCaptureBetween, ARankThatFailsEndsTheOthersByName) {
  SHOAL_NEEDS_GPU();
  for (const nlohmann::json& parameters : {sharded(3), kParts, kStages}) {
    if (over_nccl()) GTEST_SKIP() << "train_step_results_test covers lost ranks over NCCL";
    SCOPED_TRACE(parameters.dump());
    const TemporaryDirectory output;
    TrainingArguments a = arguments_of(output / "on", StepCaptureMode::on);
    a.mp_parameters = parameters;
    a.logging_steps = kSteps;
    a.per_device_train_batch_size = 4;
    Failing failing;
    std::vector<std::string> errors;
    train(a, {.prepare =
                  [&](TrainerParts& parts) {
                    if (parts.communicator->rank() == 1) parts.callbacks = {&failing};
                  },
              .errors = &errors});
    ASSERT_EQ(errors.size(), 2U);
    EXPECT_THAT(errors[1], HasSubstr("the test's own failure"));
    EXPECT_THAT(errors[0], HasSubstr("rank 1 aborted: the test's own failure"));
  }
}

}  // namespace
}  // namespace shoal
