// The Trainer on rows that hold several texts: on one rank and on meshes, captured and evaluated.
#include "support/temporary_directory.h"
#include "train/trainer/packed_rows.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

using test::bytes_of;
using test::expect_close;
using test::kToyVocabulary;
using test::Outcome;
using test::PackedRows;
using test::run;
using test::RunOptions;
using test::TextRows;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

constexpr std::int64_t kGlobalBatch = 8, kRows = 10;

RunOptions packed_rows(int ranks = 1, std::int64_t rows = 48) {
  RunOptions options{.ranks = ranks};
  options.config.num_attention_heads = 4;
  options.prepare = [rows](CausalLmTask&, TrainerParts& parts) {
    parts.train_dataset = std::make_shared<PackedRows>(rows, kToyVocabulary);
  };
  return options;
}

TrainingArguments arguments_for(const std::string& output, std::int64_t steps) {
  TrainingArguments a = test::toy_arguments(output);
  a.overwrite_output_dir = true;
  a.max_steps = steps;
  a.per_device_train_batch_size = kGlobalBatch;
  return a;
}

// Microbatches are slices of a batch. If they do not divide it, the last one is filled up.
TEST(TrainerPacked, MeshesTrainAsOneRankDoes) {
  const TemporaryDirectory output;
  struct Layout {
    int rdp = 1, pp = 1, tp = 1;
    std::int64_t microbatches = 1;
    nlohmann::json more = nlohmann::json::object();
  };
  for (const std::int64_t rows : {48, 41}) {  // 41: an epoch's last batch has one row
    const auto one = run(arguments_for(output / "one", 8), packed_rows(1, rows));
    EXPECT_LT(one.main.losses.back(), one.main.losses.front());
    for (const Layout& layout :
         std::vector<Layout>{{.microbatches = 2},
                             {.pp = 2, .microbatches = 4},
                             {.tp = 2},
                             {.tp = 2, .microbatches = 2, .more = {{"prescaled_batch", true}}},
                             {.tp = 2, .more = {{"prescaled_batch", true}, {"optimize", "speed"}}},
                             {.rdp = 2,
                              .pp = 2,
                              .microbatches = 2,
                              .more = {{"sharding_strategy", "SHARD_GRAD_OP"}}},
                             {.pp = 2, .tp = 2, .microbatches = 2}}) {
      // Replicas fill the last batch of an epoch with earlier rows.
      if (rows == 41 && layout.rdp > 1) continue;
      const bool shares = layout.more.value("prescaled_batch", false);
      TrainingArguments a = arguments_for(output / "mesh", 8);
      a.per_device_train_batch_size = kGlobalBatch / layout.rdp / (shares ? 1 : layout.tp);
      a.mp_parameters = layout.more;
      a.mp_parameters["ddp"] = true;
      a.mp_parameters["pipeline_parallel_degree"] = layout.pp;
      a.mp_parameters["tensor_parallel_degree"] = layout.tp;
      a.mp_parameters["microbatches"] = layout.microbatches;
      SCOPED_TRACE(a.mp_parameters.dump());
      const auto mesh = run(a, packed_rows(layout.rdp * layout.pp * layout.tp, rows));
      if (rows == 48) {
        expect_close(one.main.losses, mesh.main.losses, 2e-5);
        expect_close(one.main.norms, mesh.main.norms, 1e-3);
      } else {
        expect_close(one.main.losses, mesh.main.losses, 2e-4);
      }
    }
  }
}

TEST(TrainerPacked, RanksTrainAsOneDoes) {
  const TemporaryDirectory output;
  const auto one = run(arguments_for(output / "one", 8), packed_rows());
  TrainingArguments a = arguments_for(output / "two", 8);
  a.per_device_train_batch_size = kGlobalBatch / 2;
  expect_close(one.main.losses, run(a, packed_rows(2)).main.losses, 2e-5);
  a.per_device_train_batch_size = 2;
  a.gradient_accumulation_steps = 4;
  a.gradient_checkpointing = true;
  expect_close(one.main.losses, run(a, packed_rows()).main.losses, 2e-5);
}

// The rows' activations are large enough to be offloaded.
TEST(TrainerPacked, OffloadingChangesNoBit) {
  const TemporaryDirectory output;
  constexpr std::int64_t kSteps = 2, kWidth = 192,
                         kStream = kGlobalBatch * PackedRows::kLength * kWidth * 4;
  static_assert(kStream >= std::int64_t{1} << 16);
  TrainingArguments a = arguments_for(output / "run", kSteps);
  a.gradient_accumulation_steps = 2;
  a.gradient_checkpointing = true;
  RunOptions options = packed_rows();
  options.config.hidden_size = kWidth;
  const auto kept = run(a, options);
  a.activation_offloading = true;
  parallel::OffloadStatistics offloaded;
  options.after = [&](Trainer& trainer, int) { offloaded = trainer.offloaded().value(); };
  const auto away = run(a, options);
  EXPECT_EQ(away.main.losses, kept.main.losses);
  EXPECT_EQ(away.main.norms, kept.main.norms);
  // Offloaded tensors: the inputs of the blocks and of the head's norm, and the gradient
  // that the head computes.
  EXPECT_EQ(offloaded.tensors, kSteps * 2 * (options.config.num_hidden_layers + 2));
  EXPECT_EQ(offloaded.bytes, offloaded.tensors * kStream);
}

TEST(TrainerPacked, StepCaptureChangesNothing) {
  const TemporaryDirectory output;
  auto a = arguments_for(output / "off", 20);
  a.gradient_accumulation_steps = 2;
  RunOptions options = packed_rows();
  options.save_model_to = output / "direct";
  const auto direct = run(a, options);
  a.output_dir = output / "on";
  a.step_capture = StepCaptureMode::on;
  options.save_model_to = output / "planned";
  const auto planned = run(a, options);
  EXPECT_EQ(planned.main.losses, direct.main.losses);
  EXPECT_EQ(bytes_of(output / "planned/model.safetensors"),
            bytes_of(output / "direct/model.safetensors"));
  EXPECT_THAT(planned.main.messages, HasSubstr("step capture: a plan with"));
  EXPECT_THAT(planned.main.messages, Not(HasSubstr("differs")));
}

// An evaluation of packed rows equals that of their separate texts, on a mesh too. A training step
// does as well, without dropout, whose random bits depend on the row.
TEST(TrainerPacked, TextsComputeLikeSeparateTexts) {
  const TemporaryDirectory output;
  const auto evaluated = [&](bool packed, bool mesh) {
    auto a = arguments_for(output / "run", 1);
    a.eval_strategy = Interval::steps;
    a.eval_steps = 1;
    a.per_device_train_batch_size = packed ? kRows : 25;
    RunOptions options = packed_rows(mesh ? 4 : 1);
    if (mesh)
      a.mp_parameters = {{"ddp", true},
                         {"pipeline_parallel_degree", 2},
                         {"tensor_parallel_degree", 2},
                         {"prescaled_batch", true},
                         {"microbatches", 2}};
    options.config.embedding_dropout = options.config.attention_dropout =
        options.config.hidden_dropout = 0;
    options.prepare = [packed](CausalLmTask&, TrainerParts& parts) {
      if (packed)
        parts.train_dataset = std::make_shared<PackedRows>(kRows, kToyVocabulary);
      else
        parts.train_dataset = std::make_shared<TextRows>(kRows, kToyVocabulary);
      parts.eval_dataset = parts.train_dataset;
    };
    const Outcome outcome = run(a, options);
    return std::vector<double>{outcome.main.losses.at(0), outcome.main.norms.at(0),
                               outcome.main.evaluations.at(0)["eval_loss"].get<double>()};
  };
  ASSERT_EQ(TextRows(kRows, kToyVocabulary).size(), 22);
  const std::vector<double> alone = evaluated(false, false);
  expect_close(alone, evaluated(true, false), 2e-6);
  expect_close(alone, evaluated(true, true), 2e-6);
}

}  // namespace
}  // namespace shoal
