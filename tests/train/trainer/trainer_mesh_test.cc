// The Trainer on a mesh of replicas, pipeline stages and tensor-parallel parts.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/nn/layers/layers.h"
#include "shoal/parallel/tensor/linear.h"
#include "shoal/parallel/tensor/replace.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/trainer/mp_parameters.h"

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
using ::testing::Not;
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
  EXPECT_THAT(
      outcome.header,
      AllOf(HasSubstr("layout: 4 ranks = rdp 2 x pp 2 x tp 1"), HasSubstr("embeddings"),
            HasSubstr("global batch: 8 samples = 4 per device x 2 replicas x 1 accumulated"),
            HasSubstr("microbatches: 2 a step")));
}

TEST(TrainerMesh, SaysWhatRanksWaitedFor) {
  const TemporaryDirectory output;
  for (const Layout& layout :
       {Layout{.rdp = 2, .pp = 2, .microbatches = 2},
        Layout{.rdp = 2, .pp = 2, .microbatches = 2, .more = kParametersSharded}}) {
    SCOPED_TRACE(layout.text());
    nlohmann::json record = nlohmann::json::object();
    // Replicas meet for the loss before they ask for their gradients, whose sums have then all come
    // in one run of ten to thirty: nothing is exposed. In twenty runs it is not always so.
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

// Outside the model too: a callback, a file.
TEST(TrainerMesh, ARankThatFailsEndsTheOthers) {
  const TemporaryDirectory output;
  for (const bool on_mesh : {true, false}) {
    auto arguments = arguments_for(output.path(), 50);
    const Layout layout{
        .rdp = on_mesh ? 1 : 4, .pp = on_mesh ? 2 : 1, .tp = on_mesh ? 2 : 1, .on_mesh = on_mesh};
    layout.apply(arguments);
    RunOptions options{.ranks = 4, .fail_after = 2};
    options.config = config();
    const auto errors = errors_of(arguments, options);
    EXPECT_THAT(errors.back(), HasSubstr("the test's own failure"));
    for (std::size_t rank = 0; rank < 3; ++rank)
      EXPECT_THAT(errors[rank], ::testing::StartsWith("rank 3 aborted: the test's own failure"));
  }
}

// Units are measured on the run's own samples; what they took decides the cut, is shown, and is
// kept: a continued run is cut as before, whatever units take today.
TEST(TrainerMesh, IsCutByWhatUnitsTakeAndGoesOnWithTheSameCut) {
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
  // Other stages: anew, and said.
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

// Where the model is cut changes no bit in f32, of up to two replicas with whole gradients: sums
// have the same order. So a cut by what was measured may differ from run to run.
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

// A user's own module, in a block's attention slot: it computes each position by itself.
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

// What smp.tp_register is for.
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
            return std::make_unique<Mixer>(config().n_embd);
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
  unknown.config = config();
  EXPECT_THAT(errors_of(arguments, unknown)[0], HasSubstr("a Mixer has no tensor-parallel form"));
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
  refused({{"ddp", true}, {"ddp_dist_backend", "nccl"}}, 2, "communicator is native");
  refused({{"ddp", true}, {"sdp_hierarchical_allgather", false}}, 2,
          "the rules all_gather:^hierarchical, but nobody says how");
  refused({{"pipeline_parallel_degree", 2}, {"manual_partition", {3, 2}}}, 2, "the model 4 units");
  refused({{"pipeline_parallel_degree", 2}, {"manual_partition", {2147483647, 5}}}, 2,
          "has 2147483652 units");
  refused({{"pipeline_parallel_degree", 2}, {"partition_file", output.path()}}, 2,
          "which is a directory; name a file in it");
}

// What the arguments ask of the communicator is what it was made with, as its maker says.
TEST(TrainerMesh, TakesACommunicatorThatWasMadeAsAsked) {
  const TemporaryDirectory output;
  auto arguments = arguments_for(output.path(), 1);
  arguments.mp_parameters = {
      {"ddp", true}, {"sharded_data_parallel_degree", 2}, {"sdp_hierarchical_allgather", false}};
  arguments.per_device_train_batch_size = 4;
  const auto made_with = [&](const collectives::CommunicatorOptions& with) {
    RunOptions options{.ranks = 2};
    options.config = config();
    options.prepare = [&with](CausalLmTask&, TrainerParts& parts) { parts.made_with = &with; };
    return errors_of(arguments, options);
  };
  const auto asked = communicator_options(resolve_arguments(arguments));
  EXPECT_THAT(made_with(asked), ::testing::Each(""));
  EXPECT_THAT(made_with({}), ::testing::Each(HasSubstr("was made without")));
  arguments.fixed_order = true;
  EXPECT_THAT(made_with(asked), ::testing::Each(HasSubstr("fixed_order is true, but")));
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

// Every rank finds the same, whatever it would have held; whole tensors or parts.
TEST(TrainerMesh, ACheckpointOfAnotherModelIsRefusedByAll) {
  const TemporaryDirectory output;
  const Layout saves{.pp = 2, .tp = 2, .microbatches = 2};
  auto arguments = arguments_for(output.path(), 2);
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  run_on(saves, arguments, {});
  arguments.save_strategy = Interval::no;
  arguments.overwrite_output_dir = true;
  arguments.output_dir = output / "other";
  const Layout reads{.pp = 2, .microbatches = 2};
  reads.apply(arguments);
  const auto with = [&](const auto& change) {
    RunOptions options{.ranks = 2, .initial_weights = output / "checkpoint-2"};
    options.config = config();
    change(options.config);
    return options;
  };
  EXPECT_THAT(errors_of(arguments, with([](auto& c) { c.n_layer += 1; })),
              ::testing::Each(AllOf(HasSubstr("lacks transformer.h."), HasSubstr("and 4 more"))));
  EXPECT_THAT(errors_of(arguments, with([](auto& c) { c.n_embd *= 2; })),
              ::testing::Each(HasSubstr("ln_1.weight is [24], the model wants [48]")));
  // Of a smaller model: what is left over is named.
  EXPECT_THAT(run(arguments, with([](auto& c) { c.n_layer -= 1; })).main.messages,
              HasSubstr("not used: transformer.h."));
  // A run that goes on is of the same model in what tensors do not show, too.
  arguments.resume_from_checkpoint = output / "checkpoint-2";
  EXPECT_THAT(errors_of(arguments, with([](auto& c) { c.n_layer -= 1; })),
              ::testing::Each(AllOf(HasSubstr("n_layer is 2 in " + output.path()),
                                    HasSubstr("config.json and 1 here"))));
  EXPECT_THAT(errors_of(arguments, with([](auto& c) {
                          c.n_head = 2;
                          c.activation_function = "gelu";
                        })),
              ::testing::Each(AllOf(HasSubstr("n_head is 4 in "), HasSubstr("and 2 here"),
                                    HasSubstr("activation_function is \"gelu_new\" in "))));
}

// Whichever rank reads it: a changed byte and a short file.
TEST(TrainerMesh, DamagedShardsArePassedOverByAll) {
  const TemporaryDirectory output;
  auto arguments = arguments_for(output.path(), 6);
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  const auto whole = run_on({.pp = 2}, arguments, {});
  const std::string changed = output / "checkpoint-4/shard-00001-of-00002.safetensors";
  std::fstream(changed, std::ios::in | std::ios::out).seekp(-3, std::ios::end).put('\x7f');
  std::filesystem::resize_file(output / "checkpoint-6/shard-00000-of-00002.safetensors", 100);
  arguments.resume_from_checkpoint = "true";
  const auto rest = run_on({.pp = 2, .tp = 2}, arguments, {});
  EXPECT_THAT(rest.main.messages,
              AllOf(HasSubstr("shard-00000-of-00002.safetensors has 100 bytes instead of"),
                    HasSubstr("shard-00001-of-00002.safetensors does not match its checksum")));
  expect_close({whole.main.losses.begin() + 2, whole.main.losses.end()}, rest.main.losses, 2e-5);
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

// Ranks whose output_dir is a directory of each one's own, as on hosts that share no disk.
RunOptions on_own_disks(const Layout& layout, TrainingArguments arguments,
                        const TemporaryDirectory& output) {
  layout.apply(arguments);
  RunOptions options{.ranks = layout.ranks()};
  options.config = config();
  options.arguments_of = [arguments, &output](int rank) {
    TrainingArguments own = arguments;
    own.output_dir = output / std::to_string(rank);
    return own;
  };
  return options;
}

// A rank cannot write its part: there is no checkpoint.
TEST(TrainerMesh, WithoutEveryPartThereIsNoCheckpoint) {
  const TemporaryDirectory output;
  auto arguments = arguments_for(output / "0", 20);
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  std::ofstream(output / "1") << "no directory";
  const auto options = on_own_disks({.pp = 2}, arguments, output);
  EXPECT_THAT(errors_of(arguments, options)[1], HasSubstr("Not a directory"));
  EXPECT_TRUE(list_checkpoints(output / "0").empty());
}

// What SageMaker does with the checkpoints of its hosts between two starts.
void put_together(const TemporaryDirectory& output) {
  const auto all =
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::skip_existing;
  std::filesystem::copy(output / "0", output / "1", all);
  std::filesystem::copy(output / "1", output / "0", all);
}

TEST(TrainerMesh, OnDisksOfTheirOwnACheckpointIsWholeOncePutTogether) {
  const TemporaryDirectory output, shared;
  const Layout layout{.rdp = 2, .more = kParametersSharded};
  auto arguments = arguments_for(shared / "run", 8);
  arguments.save_strategy = Interval::steps;
  arguments.save_steps = 2;
  arguments.save_total_limit = 2;
  const auto whole = run_on(layout, arguments, {.save_model_to = shared / "model"});

  auto options = on_own_disks(layout, arguments, output);
  options.stop_after = 4;
  const auto stopped = run(arguments, options);
  EXPECT_THAT(stopped.main.messages, HasSubstr("output_dir is on each host's own disk"));
  const std::string first = output / "0/checkpoint-4", second = output / "1/checkpoint-4";
  const std::string part = "/shard-00001-of-00002.safetensors";
  EXPECT_THAT(checkpoint_problem(first, true).value_or("none"),
              HasSubstr("shard-00001-of-00002.safetensors is missing"));
  EXPECT_THAT(checkpoint_problem(second, true).value_or("none"), HasSubstr("no COMPLETE marker"));
  // No name is of two ranks.
  ASSERT_TRUE(std::filesystem::exists(second + part));
  EXPECT_FALSE(std::filesystem::exists(second + "/shard-00000-of-00002.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(second + "/trainer_state.json"));
  put_together(output);
  EXPECT_EQ(checkpoint_problem(first, true), std::nullopt);
  EXPECT_EQ(checkpoint_problem(second, true), std::nullopt);

  arguments.resume_from_checkpoint = "true";
  options = on_own_disks(layout, arguments, output);
  options.after = [&output](Trainer& trainer, int rank) {
    trainer.save_model(output / fmt::format("{}/model", rank));
  };
  const auto rest = run(arguments, options);
  EXPECT_EQ(rest.main.losses,
            std::vector<double>(whole.main.losses.begin() + 4, whole.main.losses.end()));
  EXPECT_EQ(bytes_of(output / "0/model/model.safetensors"),
            bytes_of(shared / "model/model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(output / "1/model/model.safetensors"));
  EXPECT_EQ(list_checkpoints(output / "1").size(), 2U);  // rotated there too
}

TEST(TrainerMesh, TheBestModelComesToHostsThatLackParts) {
  for (const bool on_mesh : {true, false}) {
    const TemporaryDirectory output;
    auto arguments = arguments_for(output.path(), 6);
    arguments.learning_rate = 0.5;  // gets worse and worse
    arguments.eval_strategy = arguments.save_strategy = Interval::steps;
    arguments.eval_steps = arguments.save_steps = 2;
    arguments.load_best_model_at_end = true;
    const Layout layout{.rdp = on_mesh ? 1 : 2, .pp = on_mesh ? 2 : 1, .on_mesh = on_mesh};
    auto options = on_own_disks(layout, arguments, output);
    options.eval_samples = 7;
    const auto outcome = run(arguments, options);
    EXPECT_THAT(outcome.main.messages, HasSubstr("loaded the best model, " + output.path()));
  }
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
