// Llama's head for texts against transformers (tools/golden/make_llama.py), and as directories.
#include "golden_model.h"
#include "room.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/llama/classifier.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::nn {
namespace {

using ::testing::AllOf;
using testing::close_in_norm;
using ::testing::HasSubstr;

constexpr std::int64_t kRows = 3;

LlamaConfig config_in(const std::string& directory) {
  return LlamaConfig::from_json(read_json_file(directory + "/config.json"), "config.json");
}

// A model with the golden weights, and its batch, whose rows have 11, 8 and 3 tokens.
struct Golden {
  explicit Golden(const std::string& name, DType dtype = DType::f32)
      : directory(testing::golden_path("llama/" + name)),
        model(config_in(directory)),
        file(SafetensorsFile::open(directory + "/case.safetensors")) {
    model.materialize(room.context, dtype);
    EXPECT_EQ(describe(model.load(directory, assign_values(room.context))), "");
    allocate_gradients(room.context, model.parameters());
    input.ids = room.cast(file->tensor("input_ids"), DType::i32);
    input.key_mask = room.cast(file->tensor("attention_mask"), DType::u8);
    input.targets = room.cast(file->tensor("labels"), model.regression() ? DType::f32 : DType::i32);
    if (model.regression()) input.targets = input.targets.reshaped({kRows, 1});
    input.ends = room.ids({kRows}, {10, 7, 2});
    input.loss.loss_scale = 1.0f / static_cast<float>(kRows);
  }
  // Loss and gradients of the mean.
  double step() {
    for (Parameter* parameter : model.parameters()) parameter->clear_gradient();
    Tape tape;
    room.context.tape = &tape;
    const LossOutput out = model.forward(room.context, input);
    room.context.tape = nullptr;
    EXPECT_EQ(out.targets, kRows);
    tape.backward(room.context, out.loss);
    return room.context.read(out.loss_sum) / static_cast<double>(kRows);
  }

  Room room;
  std::string directory;
  LlamaClassifier model;
  std::shared_ptr<SafetensorsFile> file;
  ChainInput input;
};

class LlamaClassifierGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(LlamaClassifierGolden, LossScoresAndGradients) {
  Golden golden(GetParam());
  EXPECT_TRUE(close_in_norm("logits", golden.model.logits(golden.room.context, golden.input),
                            golden.file->tensor("logits"), 5e-6));
  expect_golden_step(golden);
}

TEST_P(LlamaClassifierGolden, InBf16) {
  Golden golden(GetParam(), DType::bf16);
  expect_golden_step_in_bf16(golden, 5e-2);
}

// What is written has transformers' names and classes, and opens again.
TEST_P(LlamaClassifierGolden, DirectoriesAreWrittenAndRead) {
  Golden golden(GetParam());
  const testing::TemporaryDirectory made;
  EXPECT_THAT(golden.model.save_config(made.path(), DType::f32),
              ::testing::ElementsAre("config.json"));
  save_weights(made.path(), golden.model, parameter_values());
  EXPECT_EQ(ShardedSafetensors::open(made.path()).names(),
            ShardedSafetensors::open(golden.directory).names());
  const auto config = read_json_file(made.path() + "/config.json");
  EXPECT_EQ(config["architectures"][0], "LlamaForSequenceClassification");
  EXPECT_EQ(config["problem_type"],
            golden.model.regression() ? "regression" : "single_label_classification");
  EXPECT_EQ(config["id2label"]["0"], golden.model.regression() ? "LABEL_0" : "calm");
  const auto again = make_sequence_classifier(config, "config.json");
  again->materialize(golden.room.context, DType::f32);
  EXPECT_EQ(describe(again->load(made.path(), assign_values(golden.room.context))), "");
  EXPECT_TRUE(close_in_norm("logits", again->logits(golden.room.context, golden.input),
                            golden.file->tensor("logits"), 5e-6));
}

INSTANTIATE_TEST_SUITE_P(Cases, LlamaClassifierGolden, ::testing::Values("classes", "numbers"),
                         [](const auto& test) { return std::string(test.param); });

// A language model's directory has all but the head.
TEST(LlamaClassifier, BeginsWithALanguageModel) {
  Room room;
  const std::string directory = testing::golden_path("llama/untied");
  LlamaConfig config = config_in(directory);
  config.num_labels = 4;
  LlamaClassifier model(config);
  model.materialize(room.context, DType::f32);
  EXPECT_THAT(
      describe(model.load(directory, assign_values(room.context))),
      AllOf(HasSubstr("newly initialised: score.weight"), HasSubstr("not used: lm_head.weight")));
  EXPECT_THAT(model.describe(), HasSubstr("llama for sequence classification, 1 layers"));
}

// Without `ends` samples end where their row does; a place beyond it is refused.
TEST(LlamaClassifier, EndsAreChecked) {
  Golden golden("classes");
  const Tensor scores = golden.model.logits(golden.room.context, golden.input);
  golden.input.ends = {};
  const Tensor last = golden.model.logits(golden.room.context, golden.input);
  EXPECT_TRUE(
      close_in_norm("of a whole row", last.narrowed(0, 0, 1), scores.narrowed(0, 0, 1), 1e-6));
  EXPECT_FALSE(
      close_in_norm("of a padded row", last.narrowed(0, 2, 1), scores.narrowed(0, 2, 1), 1e-3));
  golden.input.ends = golden.room.ids({kRows}, {10, 11, 2});
  EXPECT_THROW((void)golden.model.logits(golden.room.context, golden.input), Error);
}

}  // namespace
}  // namespace shoal::nn
