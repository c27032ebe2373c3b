// The Trainer on a mesh of replicas, pipeline stages and tensor-parallel parts.
#include <cmath>
#include <filesystem>
#include <fstream>

#include "support/temporary_directory.h"
#include "train/trainer/mesh_layout.h"
#include <gmock/gmock.h>

#include "shoal/nn/layers/layers.h"
#include "shoal/parallel/tensor/linear.h"
#include "shoal/parallel/tensor/replace.h"
#include "shoal/train/trainer/resolved_run.h"

namespace shoal {
namespace {

using test::arguments_for;
using test::bytes_of;
using test::errors_of;
using test::expect_close;
using test::kOptimizerSharded;
using test::kParametersSharded;
using test::kShared;
using test::kSpeed;
using test::Layout;
using test::mesh_config;
using test::run_on;
using test::RunOptions;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

const nlohmann::json kGradientsSharded = {{"sharding_strategy", "SHARD_GRAD_OP"}};

// With 48 samples an epoch ends with a full global batch in every layout.
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

// neftune_noise_alpha: the same noise in every layout, and none in evaluation.
TEST(TrainerMesh, NoiseOnEmbeddingsDoesNotKnowTheLayout) {
  const TemporaryDirectory output;
  const RunOptions options{.samples = 48, .eval_samples = 8};
  const auto with = [&](const Layout& layout, double alpha, bool checkpoints = false) {
    auto arguments = arguments_for(output / "run", 6);
    arguments.neftune_noise_alpha = alpha;
    arguments.gradient_checkpointing = checkpoints;
    arguments.eval_strategy = Interval::steps;
    arguments.eval_on_start = true;
    return run_on(layout, arguments, options).main;
  };
  const auto still = with({.on_mesh = false}, 0), noisy = with({.on_mesh = false}, 20);
  EXPECT_GT(std::abs(noisy.norms.front() / still.norms.front() - 1), 0.02);
  EXPECT_EQ(noisy.evaluations.front()["eval_loss"], still.evaluations.front()["eval_loss"]);
  EXPECT_EQ(noisy.losses, with({.on_mesh = false}, 20).losses);
  EXPECT_EQ(noisy.losses, with({.on_mesh = false}, 20, true).losses) << "recomputed alike";
  for (const Layout& layout :
       {Layout{.rdp = 2, .accumulated = 2, .on_mesh = false}, Layout{.pp = 2, .microbatches = 4},
        Layout{.tp = 2}, Layout{.tp = 2, .microbatches = 2, .more = kShared},
        Layout{.tp = 4, .more = kSpeed},
        Layout{.rdp = 2, .pp = 2, .tp = 2, .more = kParametersSharded}}) {
    SCOPED_TRACE(layout.text());
    const auto other = with(layout, 20);
    expect_close(noisy.losses, other.losses, 2e-5);
    expect_close(noisy.norms, other.norms, 1e-3);
  }
}

// With 41 samples the last batches of an epoch are short, and its last update has fewer of them.
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
  EXPECT_THAT(
      outcome.header,
      AllOf(HasSubstr("layout: 4 ranks = rdp 2 x pp 2 x tp 1"), HasSubstr("embeddings"),
            HasSubstr("global batch: 8 samples = 4 per device x 2 replicas x 1 accumulated"),
            HasSubstr("microbatches: 2 a step")));
}

TEST(TrainerMesh, LogsTheWaitsOfRanks) {
  const TemporaryDirectory output;
  for (const Layout& layout :
       {Layout{.rdp = 2, .pp = 2, .microbatches = 2},
        Layout{.rdp = 2, .pp = 2, .microbatches = 2, .more = kParametersSharded}}) {
    SCOPED_TRACE(layout.text());
    nlohmann::json record = nlohmann::json::object();
    // Replicas meet for the loss before they need their gradients. In one run of ten to thirty all
    // sums have arrived by then and nothing is exposed, but not in twenty runs in a row.
    for (int i = 0; i < 20 && record.value("exposed_communication_seconds", 0.0) == 0; ++i) {
      std::filesystem::remove_all(output / "run");
      run_on(layout, arguments_for(output / "run", 7), {});
      std::ifstream file(output / "run/metrics.jsonl");
      std::string line;
      ASSERT_TRUE(std::getline(file, line));
      record = nlohmann::json::parse(line);
    }
    EXPECT_GT(record.at("exposed_communication_seconds").get<double>(), 0);
    EXPECT_GT(record.at("pipeline_wait_seconds").get<double>(), 0);
    double phases = record.at("pipeline_wait_seconds").get<double>();
    for (const char* phase : {"data", "forward", "backward", "communication", "optimizer"}) {
      phases += record.at(fmt::format("{}_seconds", phase)).get<double>();
      EXPECT_GT(record.at(fmt::format("{}_seconds", phase)).get<double>(), 0) << phase;
    }
    EXPECT_LE(phases, record.at("step_seconds").get<double>() * (1 + 1e-9));
    EXPECT_GE(record.at("hidden_communication_share").get<double>(), 0);
    EXPECT_LE(record.at("hidden_communication_share").get<double>(), 1);
  }
}

// Failures outside the model too: in a callback, in a file operation.
TEST(TrainerMesh, ARankThatFailsEndsTheOthers) {
  const TemporaryDirectory output;
  for (const bool on_mesh : {true, false}) {
    auto arguments = arguments_for(output.path(), 50);
    const Layout layout{
        .rdp = on_mesh ? 1 : 4, .pp = on_mesh ? 2 : 1, .tp = on_mesh ? 2 : 1, .on_mesh = on_mesh};
    layout.apply(arguments);
    RunOptions options{.ranks = 4, .fail_after = 2};
    options.config = mesh_config();
    const auto errors = errors_of(arguments, options);
    EXPECT_THAT(errors.back(), HasSubstr("the test's own failure"));
    for (std::size_t rank = 0; rank < 3; ++rank)
      EXPECT_THAT(errors[rank], ::testing::StartsWith("rank 3 aborted: the test's own failure"));
  }
}

// Units are timed on the run's own samples. The times decide the partition, which is printed and
// saved. A resumed run keeps its partition, whatever the times would be now.
TEST(TrainerMesh, IsPartitionedByMeasuredTimesAndKeepsItsPartition) {
  const TemporaryDirectory output;
  RunOptions options;
  options.header = true;
  auto arguments = arguments_for(output.path(), 2);
  arguments.save_strategy = Interval::steps;
  const Layout layout{.pp = 2, .microbatches = 2};
  const auto measured = run_on(layout, arguments, options);
  EXPECT_THAT(measured.header,
              AllOf(HasSubstr("a microbatch takes embeddings 0."), HasSubstr("h.0 to h.1 "),
                    HasSubstr("stages: cut by measured memory and time, memory_weight 0.8")));

  arguments.overwrite_output_dir = true;
  run_on({.pp = 2, .microbatches = 2, .more = {{"manual_partition", {1, 3}}}}, arguments, {});
  arguments.overwrite_output_dir = false;
  arguments.max_steps = 3;
  arguments.resume_from_checkpoint = "true";
  const auto resumed = run_on(layout, arguments, options);
  EXPECT_THAT(resumed.header,
              AllOf(HasSubstr("h.0 to head"), HasSubstr("stages: cut as in the checkpoint")));
  // With another number of stages the run measures again and says so.
  arguments.resume_from_checkpoint = output / "checkpoint-2";
  arguments.save_strategy = Interval::no;
  const auto other = run_on({.pp = 4, .microbatches = 2}, arguments, options);
  EXPECT_THAT(other.header, HasSubstr("stages: cut by measured"));
  EXPECT_THAT(other.main.messages, HasSubstr("the model is cut anew: "));

  arguments.mp_parameters = nlohmann::json::object();
  const auto counted = run_on({.pp = 2, .microbatches = 2, .more = {{"skip_tracing", true}}},
                              arguments_for(output / "counted", 1), options);
  EXPECT_THAT(counted.header,
              AllOf(HasSubstr("skip_tracing is true"), HasSubstr(" - "), Not(HasSubstr("takes"))));
}

// The partition changes no bit in f32 with up to two replicas and unsharded gradients, because the
// sums keep their order. So partitions that depend on timings do not change results.
TEST(TrainerMesh, TwoCutsGiveTheSameBits) {
  const TemporaryDirectory output;
  for (const nlohmann::json& sharding : {nlohmann::json::object(), kOptimizerSharded}) {
    const auto cut = [&](const char* name, const nlohmann::json& counts) {
      nlohmann::json more = sharding;
      more["manual_partition"] = counts;
      return run_on({.rdp = 2, .pp = 2, .microbatches = 2, .more = more},
                    arguments_for(output / name, 8), {.save_model_to = output / name});
    };
    const auto one = cut("one", {3, 1}), two = cut("two", {1, 3});
    EXPECT_EQ(one.main.losses, two.main.losses) << sharding;
    EXPECT_TRUE(bytes_of(output / "one/model.safetensors") ==
                bytes_of(output / "two/model.safetensors"))
        << sharding;
  }
}

// A user's own module in a block's attention slot. It processes each position separately.
class Mixer final : public nn::AttentionLike {
 public:
  explicit Mixer(std::int64_t channels)
      : in(*this, "in", std::make_unique<nn::Linear>(nn::LinearConfig{.in = channels, .out = 32})),
        out(*this, "out",
            std::make_unique<nn::Linear>(nn::LinearConfig{.in = 32, .out = channels})) {}
  std::string_view kind() const override { return "Mixer"; }
  nn::Value forward(nn::Context& context, const nn::Value& x, const nn::AttentionInput&) override {
    return out->forward(context, in->forward(context, x));
  }
  nn::Slot<nn::LinearLike> in, out;
};

// The C++ counterpart of smp.tp_register.
TEST(TrainerMesh, CutsAUsersOwnModule) {
  const TemporaryDirectory output;
  parallel::TensorParallelRegistry registry = parallel::TensorParallelRegistry::defaults();
  registry.add("Mixer",
               [](std::unique_ptr<nn::Module>& original, const parallel::TensorParallel& group,
                  parallel::ReplacedParameters&) -> std::unique_ptr<nn::Module> {
                 auto& mixer = dynamic_cast<Mixer&>(*original);
                 mixer.in.replace(column_parallel(*mixer.in, group));
                 mixer.out.replace(row_parallel(*mixer.out, group));
                 return nullptr;
               });
  RunOptions options{.samples = 48};
  const auto with = [&](const parallel::TensorParallelRegistry* given) {
    options.prepare = [given](CausalLmTask& task, TrainerParts& parts) {
      task.model().replace_modules(
          [](std::unique_ptr<nn::Module>& child) -> std::unique_ptr<nn::Module> {
            if (child->kind() != "CausalSelfAttention") return nullptr;
            return std::make_unique<Mixer>(mesh_config().hidden_size);
          });
      task.model().name_tree();
      parts.tensor_parallel = given;
    };
    return options;
  };
  const auto one = run_on({.on_mesh = false}, arguments_for(output.path(), 8), with(nullptr));
  for (const nlohmann::json& more : {kShared, kSpeed, nlohmann::json::object()}) {
    const Layout layout{.pp = 2, .tp = 2, .microbatches = 2, .more = more};
    const auto mesh = run_on(layout, arguments_for(output.path(), 8), with(&registry));
    expect_close(one.main.losses, mesh.main.losses, 2e-5);
  }
  auto arguments = arguments_for(output.path(), 1);
  const Layout sequence{.tp = 2, .more = kShared};
  sequence.apply(arguments);
  RunOptions unknown = with(nullptr);
  unknown.ranks = 2;
  unknown.config = mesh_config();
  EXPECT_THAT(errors_of(arguments, unknown)[0], HasSubstr("a Mixer has no tensor-parallel form"));
}

TEST(TrainerMesh, RefusesWhatCannotBeOnEveryRank) {
  const TemporaryDirectory output;
  const auto refused = [&](const nlohmann::json& parameters, int ranks, const char* text) {
    auto arguments = arguments_for(output.path(), 1);
    arguments.mp_parameters = parameters;
    RunOptions options{.ranks = ranks};
    options.config = mesh_config();
    for (const std::string& error : errors_of(arguments, options))
      EXPECT_THAT(error, HasSubstr(text));
  };
  refused({{"pipeline_parallel_degree", 3}}, 2, "2 ranks do not divide by");
  refused({{"pipeline_parallel_degree", 8}}, 8, "8 stages");
  refused({{"microbatches", 3}}, 1, "a batch of 8 does not divide into 3 microbatches");
  refused({{"tensor_parallel_degree", 3}, {"ddp", true}}, 3, "do not");
  refused({{"pipeline_parallel_degre", 2}}, 2, "pipeline_parallel_degree");
  refused({{"ddp", true}, {"ddp_dist_backend", "nccl"}}, 2, "communicator is native");
  refused({{"ddp", true}, {"sdp_hierarchical_allgather", false}}, 2,
          "the rules all_gather:^hierarchical, but TrainerParts::made_with is null");
  refused({{"pipeline_parallel_degree", 2}, {"manual_partition", {3, 2}}}, 2, "the model 4 units");
  refused({{"pipeline_parallel_degree", 2}, {"manual_partition", {2147483647, 5}}}, 2,
          "has 2147483652 units");
  refused({{"pipeline_parallel_degree", 2}, {"partition_file", output.path()}}, 2,
          "which is a directory; name a file in it");
}

// The communicator must have been made with the options that the arguments ask for.
TEST(TrainerMesh, TakesACommunicatorThatWasMadeAsAsked) {
  const TemporaryDirectory output;
  auto arguments = arguments_for(output.path(), 1);
  arguments.mp_parameters = {
      {"ddp", true}, {"sharded_data_parallel_degree", 2}, {"sdp_hierarchical_allgather", false}};
  arguments.per_device_train_batch_size = 4;
  const auto made_with = [&](const collectives::CommunicatorOptions& with) {
    RunOptions options{.ranks = 2};
    options.config = mesh_config();
    options.prepare = [&with](CausalLmTask&, TrainerParts& parts) { parts.made_with = &with; };
    return errors_of(arguments, options);
  };
  const auto asked = communicator_options(resolve_arguments(arguments));
  EXPECT_THAT(made_with(asked), ::testing::Each(""));
  EXPECT_THAT(made_with({}), ::testing::Each(HasSubstr("was made without")));
  arguments.fixed_order = true;
  EXPECT_THAT(made_with(asked), ::testing::Each(HasSubstr("fixed_order is true, but")));
}

TEST(TrainerMesh, SavesHuggingFacesFormat) {
  const TemporaryDirectory output;
  RunOptions options{.samples = 48};
  const auto saved = [&](const Layout& layout, const std::string& name) {
    auto arguments = arguments_for(output / name, 1);
    arguments.learning_rate = 0;  // keeps the initial weights
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
  // A run can start from the saved model, in any layout.
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
