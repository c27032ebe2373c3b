// The Trainer on a mesh of replicas, pipeline stages and tensor-parallel parts.
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/train/checkpoint/checkpoint_directory.h"

namespace shoal {
namespace {

using test::bytes_of;
using test::errors_of;
using test::expect_close;
using test::Outcome;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

constexpr std::int64_t kGlobalBatch = 8;

// Four heads, which two and four ranks share; four units.
nn::Gpt2Config config() {
  nn::Gpt2Config config = test::toy_config();
  config.n_head = 4;
  return config;
}

struct Layout {
  int rdp = 1, pp = 1, tp = 1;
  std::int64_t microbatches = 1, accumulated = 1;
  nlohmann::json more = nlohmann::json::object();  // of mp_parameters
  bool on_mesh = true;                             // false: the data-parallel engine on rdp ranks

  int ranks() const { return rdp * pp * tp; }
  std::string text() const {
    return fmt::format("{}rdp{} pp{} tp{} m{} a{} {}", on_mesh ? "" : "no mesh, ", rdp, pp, tp,
                       microbatches, accumulated, more.dump());
  }
  // The same global batch whatever the layout.
  void apply(TrainingArguments& arguments) const {
    const bool shares = tp > 1 && more.value("prescaled_batch", false);
    const std::int64_t devices = rdp * (shares ? 1 : tp) * accumulated;
    arguments.per_device_train_batch_size = kGlobalBatch / devices;
    arguments.gradient_accumulation_steps = accumulated;
    arguments.mp_parameters = nlohmann::json::object();
    if (!on_mesh) return;
    arguments.mp_parameters = more;
    arguments.mp_parameters["ddp"] = true;
    arguments.mp_parameters["pipeline_parallel_degree"] = pp;
    arguments.mp_parameters["tensor_parallel_degree"] = tp;
    arguments.mp_parameters["microbatches"] = microbatches;
  }
};

const nlohmann::json kShared = {{"prescaled_batch", true}};
const nlohmann::json kSpeed = {{"prescaled_batch", true}, {"optimize", "speed"}};
const nlohmann::json kOptimizerSharded = {{"shard_optimizer_state", true}};
const nlohmann::json kGradientsSharded = {{"sharding_strategy", "SHARD_GRAD_OP"}};
// Parameters too, all but the smallest; of four replicas two share a copy.
const nlohmann::json kParametersSharded = {{"sharded_data_parallel_degree", 2},
                                           {"sdp_param_persistence_threshold", 32}};

Outcome run_on(const Layout& layout, TrainingArguments arguments, RunOptions options) {
  layout.apply(arguments);
  options.ranks = layout.ranks();
  options.config = config();
  return run(arguments, options);
}

TrainingArguments arguments_for(const std::string& output, std::int64_t steps) {
  TrainingArguments arguments = toy_arguments(output);
  arguments.max_steps = steps;
  return arguments;
}

// 48 samples: an epoch ends with a whole global batch in every layout.
TEST(TrainerMesh, TrainsAsOneRankDoes) {
  const TemporaryDirectory output;
  const RunOptions options{.samples = 48};
  const auto one = run_on({.on_mesh = false}, arguments_for(output / "one", 8), options);
  const std::vector<Layout> layouts = {
      {},
      {.rdp = 2, .microbatches = 2},
      {.pp = 2, .microbatches = 4},
      {.pp = 2, .microbatches = 2, .accumulated = 2, .more = {{"pipeline", "simple"}}},
      {.pp = 4, .microbatches = 4},
      {.tp = 2},
      {.tp = 2, .microbatches = 2, .more = kShared},
      {.tp = 4, .more = kSpeed},
      {.rdp = 2, .pp = 2, .microbatches = 2, .more = {{"placement_strategy", "spread"}}},
      {.rdp = 2, .tp = 2, .accumulated = 2},
      {.pp = 2, .tp = 2, .microbatches = 2},
      {.rdp = 2, .pp = 2, .tp = 2, .microbatches = 2, .more = kShared},
      {.rdp = 4, .microbatches = 2, .more = kOptimizerSharded},
      {.rdp = 2, .pp = 2, .microbatches = 2, .accumulated = 2, .more = kGradientsSharded},
      {.rdp = 4, .more = kParametersSharded},
      {.rdp = 2, .pp = 2, .tp = 2, .microbatches = 2, .more = kParametersSharded},
  };
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.text());
    const auto other = run_on(layout, arguments_for(output / "mesh", 8), options);
    expect_close(one.main.losses, other.main.losses, 2e-5);
    expect_close(one.main.norms, other.main.norms, 1e-3);
  }
}

// 41 samples: the last batches of an epoch are short, the last update has fewer of them.
TEST(TrainerMesh, EpochsEndWithFewerRows) {
  const TemporaryDirectory output;
  for (const auto& [rdp, accumulated] : {std::pair{1, 1}, {2, 1}, {1, 4}}) {
    const auto alone = run_on({.rdp = rdp, .accumulated = accumulated, .on_mesh = false},
                              arguments_for(output / "alone", 14), {});
    for (const Layout& layout :
         {Layout{.rdp = rdp, .pp = 2, .microbatches = 2, .accumulated = accumulated},
          Layout{.rdp = rdp, .tp = 2, .accumulated = accumulated, .more = kShared}}) {
      SCOPED_TRACE(layout.text());
      const auto mesh = run_on(layout, arguments_for(output / "mesh", 14), {});
      expect_close(alone.main.losses, mesh.main.losses, 2e-5);
      EXPECT_EQ(alone.main.logs.back()["epoch"], mesh.main.logs.back()["epoch"]);
    }
  }
}

TEST(TrainerMesh, EachPrecisionLearnsTheSame) {
  const TemporaryDirectory output;
  for (const bool f16 : {false, true}) {
    auto arguments = arguments_for(output / "run", 10);
    (f16 ? arguments.fp16 : arguments.bf16) = true;
    arguments.gradient_checkpointing = f16;
    const RunOptions options{.samples = 48};
    const auto one = run_on({.on_mesh = false}, arguments, options);
    const auto mesh = run_on({.rdp = 2, .pp = 2, .tp = 2}, arguments, options);
    const auto sharded =
        run_on({.rdp = 2, .pp = 2, .more = kParametersSharded}, arguments, options);
    expect_close(one.main.losses, mesh.main.losses, 5e-3);
    expect_close(one.main.losses, sharded.main.losses, 5e-3);
    EXPECT_NE(one.main.losses.front(), one.main.losses.back());
  }
}

TEST(TrainerMesh, EvaluatesEverySampleOnce) {
  const TemporaryDirectory output;
  auto arguments = arguments_for(output.path(), 1);
  arguments.learning_rate = 0;
  arguments.eval_strategy = Interval::steps;
  arguments.eval_steps = 1;
  for (const std::int64_t samples : {1, 7, 13}) {
    const auto loss = [&](const Layout& layout) {
      const auto outcome = run_on(layout, arguments, {.eval_samples = samples});
      return outcome.main.evaluations.at(0)["eval_loss"].get<double>();
    };
    const double alone = loss({.on_mesh = false});
    for (const Layout& layout :
         {Layout{.rdp = 2, .pp = 2, .microbatches = 2, .more = kParametersSharded},
          Layout{.rdp = 2, .tp = 2}, Layout{.rdp = 4},
          Layout{.pp = 2, .tp = 2, .accumulated = 2, .more = kShared}})
      EXPECT_NEAR(loss(layout), alone, 1e-6 * alone) << samples << " on " << layout.text();
  }
}

TEST(TrainerMesh, SaysHowRanksShareTheWork) {
  const TemporaryDirectory output;
  RunOptions options;
  options.header = true;
  const auto outcome =
      run_on({.rdp = 2, .pp = 2, .microbatches = 2}, arguments_for(output.path(), 1), options);
  EXPECT_THAT(outcome.header,
              AllOf(HasSubstr("layout: 4 ranks = rdp 2 x pp 2 x tp 1"), HasSubstr("embeddings"),
                    HasSubstr("global batch: 8 samples = 4 per device x 2 ranks x 1 accumulated"),
                    HasSubstr("microbatches: 2 a step")));
}

TEST(TrainerMesh, RefusesWhatCannotBeOnEveryRank) {
  const TemporaryDirectory output;
  const auto refused = [&](const nlohmann::json& parameters, int ranks, const char* text) {
    auto arguments = arguments_for(output.path(), 1);
    arguments.mp_parameters = parameters;
    RunOptions options{.ranks = ranks};
    options.config = config();
    for (const std::string& error : errors_of(arguments, options))
      EXPECT_THAT(error, HasSubstr(text));
  };
  refused({{"pipeline_parallel_degree", 3}}, 2, "2 ranks do not divide by");
  refused({{"pipeline_parallel_degree", 8}}, 8, "8 stages");
  refused({{"microbatches", 3}}, 1, "a batch of 8 does not divide into 3 microbatches");
  refused({{"tensor_parallel_degree", 3}, {"ddp", true}}, 3, "do not");
  refused({{"pipeline_parallel_degre", 2}}, 2, "pipeline_parallel_degree");
}

// Every layout continues what every other one saved, as if the run had never stopped.
std::vector<Layout> saved_layouts() {
  return {
      {.on_mesh = false},
      {.rdp = 2, .on_mesh = false},
      {.pp = 2, .microbatches = 2},
      {.tp = 4, .more = kShared},
      {.rdp = 2, .pp = 2, .microbatches = 2, .more = kOptimizerSharded},
      {.rdp = 4, .more = kParametersSharded},
      {.pp = 2, .tp = 2, .microbatches = 2, .more = kSpeed},
      {.rdp = 2, .pp = 2, .tp = 2, .more = kParametersSharded},
  };
}

TEST(TrainerMesh, EveryLayoutContinuesEveryOther) {
  const TemporaryDirectory output;
  const RunOptions options{.samples = 48};
  const bool full = std::getenv("SHOAL_TEST_FULL") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  const auto whole = run_on({.on_mesh = false}, arguments_for(output / "whole", 8), options);
  const auto layouts = saved_layouts();
  double worst = 0;
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    auto arguments = arguments_for(output / fmt::format("{}", from), 8);
    RunOptions stopped = options;
    arguments.save_strategy = Interval::steps;
    arguments.save_steps = 4;
    stopped.stop_after = 4;
    run_on(layouts[from], arguments, stopped);
    arguments.resume_from_checkpoint = arguments.output_dir + "/checkpoint-4";
    arguments.output_dir = output / "rest";
    arguments.save_strategy = Interval::no;
    for (std::size_t to = 0; to < layouts.size(); ++to) {
      // Each once from and once to another, where not all are asked for.
      if (!full && to != (from + 3) % layouts.size()) continue;
      SCOPED_TRACE(layouts[from].text() + " -> " + layouts[to].text());
      const auto rest = run_on(layouts[to], arguments, options);
      const std::vector<double> want(whole.main.losses.begin() + 4, whole.main.losses.end());
      expect_close(want, rest.main.losses, 2e-5);
      for (std::size_t i = 0; i < want.size() && i < rest.main.losses.size(); ++i)
        worst = std::max(worst, std::abs(rest.main.losses[i] / want[i] - 1));
    }
  }
  RecordProperty("loss_error", fmt::format("{:.2e}", worst));
  if (full) std::printf("64 pairs of layouts: losses within %.1e\n", worst);
}

TEST(TrainerMesh, AStoppedRunGoesOnToTheBit) {
  const TemporaryDirectory output;
  const Layout layout{.rdp = 2, .pp = 2, .microbatches = 2, .more = kParametersSharded};
  auto arguments = arguments_for(output / "whole", 20);
  const auto whole = run_on(layout, arguments, {});
  arguments.output_dir = output / "broken";
  const auto stopped = run_on(layout, arguments, {.signal_after = 9});
  EXPECT_EQ(stopped.result.stop_signal, 15);  // although rank 0 got none
  EXPECT_EQ(stopped.result.last_checkpoint, output / "broken/checkpoint-9");
  EXPECT_EQ(checkpoint_problem(output / "broken/checkpoint-9", true), std::nullopt);
  arguments.resume_from_checkpoint = "true";
  const auto rest = run_on(layout, arguments, {});
  EXPECT_EQ(rest.main.losses,
            std::vector<double>(whole.main.losses.begin() + 9, whole.main.losses.end()));
}

TEST(TrainerMesh, CheckpointsInPartsAreRotatedAndTheBestIsLoaded) {
  const TemporaryDirectory output;
  auto arguments = arguments_for(output.path(), 8);
  arguments.learning_rate = 0.5;  // gets worse and worse
  arguments.eval_strategy = arguments.save_strategy = Interval::steps;
  arguments.eval_steps = 2;
  arguments.save_steps = 2;
  arguments.save_total_limit = 1;
  arguments.load_best_model_at_end = true;
  const auto outcome = run_on({.pp = 2, .tp = 2}, arguments, {.eval_samples = 7});
  EXPECT_THAT(outcome.main.messages, HasSubstr("loaded the best model, " + output.path()));
  const auto left = list_checkpoints(output.path());
  ASSERT_LE(left.size(), 2U);  // the last and the best
  for (const CheckpointInfo& info : left)
    EXPECT_EQ(checkpoint_problem(info.path, true), std::nullopt) << info.path;
  EXPECT_EQ(left.back().step, 8);
  std::size_t shards = 0;
  for (const auto& file : std::filesystem::directory_iterator(left.back().path))
    shards += file.path().filename().string().starts_with("shard-") ? 1 : 0;
  EXPECT_EQ(shards, 4U);
}

// A rank cannot write its part, as where output_dir is each host's own: there is no checkpoint.
TEST(TrainerMesh, WithoutEveryPartThereIsNoCheckpoint) {
  const TemporaryDirectory output;
  auto arguments = arguments_for(output / "0", 20);
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  const Layout layout{.pp = 2};
  layout.apply(arguments);
  RunOptions options{.ranks = 2};
  options.config = config();
  options.arguments_of = [&](int rank) {
    TrainingArguments own = arguments;
    own.output_dir = output / std::to_string(rank);
    return own;
  };
  EXPECT_THAT(errors_of(arguments, options)[1], HasSubstr("shard-00001-of-00002"));
  EXPECT_TRUE(list_checkpoints(output / "0").empty());
}

TEST(TrainerMesh, SavesHuggingFacesFormat) {
  const TemporaryDirectory output;
  RunOptions options{.samples = 48};
  const auto saved = [&](const Layout& layout, const std::string& name) {
    auto arguments = arguments_for(output / name, 1);
    arguments.learning_rate = 0;  // the initial weights
    options.save_model_to = output / (name + "-model");
    run_on(layout, arguments, options);
    return options.save_model_to;
  };
  const std::string alone = saved({.on_mesh = false}, "alone");
  for (const Layout& layout :
       {Layout{.pp = 2, .tp = 2}, Layout{.rdp = 2, .tp = 4, .more = kParametersSharded}}) {
    const std::string mesh = saved(layout, "mesh");
    for (const char* file : {"model.safetensors", "config.json", "generation_config.json"})
      EXPECT_EQ(bytes_of(alone + "/" + file), bytes_of(mesh + "/" + file)) << layout.text();
    EXPECT_FALSE(std::filesystem::exists(mesh + "/tmp-checkpoint-model.0"));
  }
  // And starts from it, whatever the layout.
  auto arguments = arguments_for(output / "started", 4);
  arguments.seed = 43;  // other initial weights
  options.save_model_to.clear();
  const auto elsewhere = run_on({.on_mesh = false}, arguments, options);
  options.initial_weights = alone;
  const auto one = run_on({.on_mesh = false}, arguments, options);
  const auto mesh = run_on({.pp = 2, .tp = 2, .microbatches = 2}, arguments, options);
  EXPECT_NE(one.main.losses, elsewhere.main.losses);
  expect_close(one.main.losses, mesh.main.losses, 2e-5);
}

}  // namespace
}  // namespace shoal
