// The cards of tests/golden/model_card, which transformers made (tools/golden/make_model_card.py).
#include "shoal/train/command/model_card.h"

#include <fstream>
#include <iterator>
#include <string>

#include "support/source_tree.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/train/trainer/resolved_run.h"

namespace shoal::command {
namespace {

using ::testing::HasSubstr;

// Without the versions at the end, and without the heading of an empty table, which Shoal omits.
std::string golden(const std::string& name) {
  std::ifstream file(testing::source_path("tests/golden/model_card/" + name + ".md"));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  text.resize(text.find("\n### Framework versions"));
  const std::string empty = "\n### Training results\n\n\n";
  if (const auto at = text.find(empty); at != std::string::npos) text.erase(at, empty.size());
  return text;
}
std::string before_versions(std::string text) {
  text.resize(std::min(text.size(), text.find("\n### Framework versions")));
  return text;
}

RunArguments arguments_of(const std::string& output_dir, TrainingArguments training = {}) {
  training.output_dir = output_dir;
  RunArguments arguments;
  arguments.training = resolve_arguments(std::move(training));
  return arguments;
}

TEST(ModelCard, OfAFineTunedModelIsTransformers) {
  TrainingArguments training;
  training.per_device_train_batch_size = 4;
  training.gradient_accumulation_steps = 3;
  training.warmup_steps = 5;
  training.max_steps = 20;
  RunArguments arguments = arguments_of("/runs/mrpc-run", training);
  arguments.model.model_name_or_path = "some/bert-tiny";
  arguments.data.task_name = "mrpc";
  TrainerState state;
  state.global_batch_size = 24;
  state.log_history = nlohmann::json::parse(R"([
      {"loss": 0.693147, "step": 10, "epoch": 0.5},
      {"eval_loss": 0.61234567, "eval_accuracy": 0.75, "eval_f1": 0.8123456, "eval_runtime": 1.5,
       "step": 10, "epoch": 0.5},
      {"loss": 0.5, "step": 20, "epoch": 1.0},
      {"eval_loss": 0.25, "eval_accuracy": 0.9, "eval_f1": 0.912345,
       "eval_samples_per_second": 3.5, "step": 20, "epoch": 1.0}])");
  const auto results = nlohmann::ordered_json::parse(
      R"({"train_loss": 0.6, "eval_loss": 0.25, "eval_accuracy": 0.9, "eval_f1": 0.912345,
          "eval_runtime": 2.5})");
  EXPECT_EQ(before_versions(model_card(arguments, 2, state, results)), golden("tuned"));
}

TEST(ModelCard, OfANewModelIsTransformers) {
  TrainingArguments training;
  training.learning_rate = 1e-3;
  training.lr_scheduler_type = "cosine";
  TrainerState state;
  state.global_batch_size = 8;
  state.log_history = nlohmann::json::parse(R"([{"loss": 4.5, "step": 10, "epoch": 1.0}])");
  EXPECT_EQ(before_versions(model_card(arguments_of("runs/my run/", training), 1, state, {})),
            golden("scratch"));
}

TEST(ModelCard, KeepsPathsPrivateAndYamlWhole) {
  RunArguments arguments = arguments_of("/home/me/a: b");
  arguments.model.model_name_or_path = "/home/me/bert/";
  const std::string card = model_card(arguments, 1, {}, {});
  EXPECT_THAT(card, HasSubstr("base_model: bert\n"));
  EXPECT_THAT(card, HasSubstr("- name: \"a: b\"\n"));
  EXPECT_EQ(card.find("/home"), std::string::npos);
}

TEST(ModelCard, OfAdaptersIsPefts) {
  RunArguments arguments = arguments_of("out");
  arguments.model.model_name_or_path = "/home/me/an-adapter";
  const std::string card = model_card(arguments, 1, {}, {}, "/home/me/gpt2");
  EXPECT_THAT(card, HasSubstr("library_name: peft\nbase_model: gpt2\n"
                              "tags:\n- \"base_model:adapter:gpt2\"\n- generated_from_trainer\n"
                              "- lora\n- transformers\n"));
  EXPECT_THAT(card, HasSubstr("fine-tuned version of [gpt2]"));
}

TEST(ModelCard, OfAPersonIsKnown) {
  EXPECT_TRUE(is_generated_card(model_card(arguments_of("out"), 1, {}, {})));
  EXPECT_FALSE(is_generated_card("# My model\n"));
}

}  // namespace
}  // namespace shoal::command
