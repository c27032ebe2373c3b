// Checkpoints that the ranks of a mesh save together. Any other layout can resume from them, and so
// can ranks with separate disks.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/temporary_directory.h"
#include "train/trainer/mesh_layout.h"
#include <gmock/gmock.h>

#include "shoal/train/checkpoint/checkpoint_directory.h"

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
using test::run;
using test::run_on;
using test::RunOptions;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

// Every layout continues a checkpoint of every other one, as if the run had never stopped.
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

// The worst distance of losses to those of a run that never stopped.
double expect_layouts_continue(const std::string& optim) {
  const TemporaryDirectory output;
  const RunOptions options{.samples = 48};
  const bool full = std::getenv("SHOAL_TEST_FULL") != nullptr;  // NOLINT(concurrency-mt-unsafe)
  const auto arguments_of = [&](const std::string& directory) {
    auto arguments = arguments_for(directory, 8);
    arguments.optim = optim;
    return arguments;
  };
  const auto whole = run_on({.on_mesh = false}, arguments_of(output / "whole"), options);
  const auto layouts = saved_layouts();
  double worst = 0;
  for (std::size_t from = 0; from < layouts.size(); ++from) {
    auto arguments = arguments_of(output / fmt::format("{}", from));
    RunOptions stopped = options;
    arguments.save_strategy = Interval::steps;
    arguments.save_steps = 4;
    stopped.stop_after = 4;
    run_on(layouts[from], arguments, stopped);
    arguments.resume_from_checkpoint = arguments.output_dir + "/checkpoint-4";
    arguments.output_dir = output / "rest";
    arguments.save_strategy = Interval::no;
    for (std::size_t to = 0; to < layouts.size(); ++to) {
      // Without --full, each layout is the source once and the target once.
      if (!full && to != (from + 3) % layouts.size()) continue;
      SCOPED_TRACE(optim + " " + layouts[from].text() + " -> " + layouts[to].text());
      const auto rest = run_on(layouts[to], arguments, options);
      const std::vector<double> want(whole.main.losses.begin() + 4, whole.main.losses.end());
      expect_close(want, rest.main.losses, 2e-5);
      for (std::size_t i = 0; i < want.size() && i < rest.main.losses.size(); ++i)
        worst = std::max(worst, std::abs(rest.main.losses[i] / want[i] - 1));
    }
  }
  std::printf("%s, %s layouts: losses within %.1e\n", optim.c_str(), full ? "64 pairs of" : "8",
              worst);
  return worst;
}

TEST(TrainerMesh, EveryLayoutContinuesEveryOther) {
  const double worst = expect_layouts_continue("adamw");
  RecordProperty("loss_error", fmt::format("{:.2e}", worst));
}

TEST(TrainerMesh, EveryLayoutContinuesEveryOtherWithAdafactor) {
  expect_layouts_continue("adafactor");
}

TEST(TrainerMesh, AStoppedRunResumesToTheBit) {
  const Layout layout{.rdp = 2, .pp = 2, .microbatches = 2, .more = kParametersSharded};
  for (const std::string optim : {"adamw", "adafactor"}) {
    SCOPED_TRACE(optim);
    const TemporaryDirectory output;
    auto arguments = arguments_for(output / "whole", 20);
    arguments.optim = optim;
    const auto whole = run_on(layout, arguments, {});
    arguments.output_dir = output / "broken";
    const auto stopped = run_on(layout, arguments, {.signal_after = 9});
    EXPECT_EQ(stopped.result.stop_signal, 15);  // although rank 0 received none
    EXPECT_EQ(stopped.result.last_checkpoint, output / "broken/checkpoint-9");
    EXPECT_EQ(checkpoint_problem(output / "broken/checkpoint-9", true), std::nullopt);
    arguments.resume_from_checkpoint = "true";
    const auto rest = run_on(layout, arguments, {});
    EXPECT_EQ(rest.main.losses,
              std::vector<double>(whole.main.losses.begin() + 9, whole.main.losses.end()));
  }
}

// Every rank reports the same error, whichever tensors it would hold, for whole
// tensors and for parts.
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
    options.config = mesh_config();
    change(options.config);
    return options;
  };
  EXPECT_THAT(errors_of(arguments, with([](auto& c) { c.num_hidden_layers += 1; })),
              ::testing::Each(AllOf(HasSubstr("lacks transformer.h."), HasSubstr("and 4 more"))));
  EXPECT_THAT(errors_of(arguments, with([](auto& c) { c.hidden_size *= 2; })),
              ::testing::Each(HasSubstr("ln_1.weight is [24], the model wants [48]")));
  // With a smaller model, the message names the unused tensors.
  EXPECT_THAT(run(arguments, with([](auto& c) { c.num_hidden_layers -= 1; })).main.messages,
              HasSubstr("not used: transformer.h."));
  // A resumed run must have the same model also in settings that the tensors do not show.
  arguments.resume_from_checkpoint = output / "checkpoint-2";
  EXPECT_THAT(errors_of(arguments, with([](auto& c) { c.num_hidden_layers -= 1; })),
              ::testing::Each(AllOf(HasSubstr("n_layer is 2 in " + output.path()),
                                    HasSubstr("config.json and 1 here"))));
  EXPECT_THAT(errors_of(arguments, with([](auto& c) {
                          c.num_attention_heads = 2;
                          c.hidden_act = "gelu";
                        })),
              ::testing::Each(AllOf(HasSubstr("n_head is 4 in "), HasSubstr("and 2 here"),
                                    HasSubstr("activation_function is \"gelu_new\" in "))));
}

// A changed byte and a short file are detected whichever rank reads them.
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
  arguments.learning_rate = 0.5;  // the loss increases
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

// The output_dir of each rank is its own directory, as on hosts without a shared disk.
RunOptions on_own_disks(const Layout& layout, TrainingArguments arguments,
                        const TemporaryDirectory& output) {
  layout.apply(arguments);
  RunOptions options{.ranks = layout.ranks()};
  options.config = mesh_config();
  options.arguments_of = [arguments, &output](int rank) {
    TrainingArguments own = arguments;
    own.output_dir = output / std::to_string(rank);
    return own;
  };
  return options;
}

// One rank cannot write its part, so no checkpoint is made.
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

// Collects the hosts' checkpoints as SageMaker does between two starts.
void put_together(const TemporaryDirectory& output) {
  const auto all =
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::skip_existing;
  std::filesystem::copy(output / "0", output / "1", all);
  std::filesystem::copy(output / "1", output / "0", all);
}

TEST(TrainerMesh, OnSeparateDisksACheckpointIsCompleteOnceMerged) {
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
  // No two ranks use the same file name.
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
  EXPECT_EQ(list_checkpoints(output / "1").size(), 2U);  // this rank rotates too
}

TEST(TrainerMesh, TheBestModelComesToHostsThatLackParts) {
  for (const bool on_mesh : {true, false}) {
    const TemporaryDirectory output;
    auto arguments = arguments_for(output.path(), 6);
    arguments.learning_rate = 0.5;  // the loss increases
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

}  // namespace
}  // namespace shoal
