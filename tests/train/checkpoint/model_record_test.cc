// The record of the model that a checkpoint belongs to.
#include "shoal/train/checkpoint/model_record.h"

#include "support/error_text.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/tasks/make_task.h"

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const nlohmann::json kSaved = {{"model_type", "llama"},    {"architectures", {"LlamaForCausalLM"}},
                               {"num_attention_heads", 8}, {"num_key_value_heads", 4},
                               {"rms_norm_eps", 1e-5},     {"rope_scaling", nullptr},
                               {"hidden_act", "silu"},     {"attention_dropout", 0.1},
                               {"torch_dtype", "float32"}, {"transformers_version", "4.40.0"},
                               {"_name_or_path", "there"}};

class ModelRecord : public ::testing::Test {
 protected:
  void SetUp() override { write_file_atomically(directory / "config.json", kSaved.dump()); }
  std::vector<std::string> check(const nlohmann::json& change) const {
    nlohmann::json here = kSaved;
    here.update(change);
    return check_same_model(directory.path(), here, as_it_is);
  }
  static nlohmann::json as_it_is(const nlohmann::json& config, std::string_view /*path*/) {
    return config;
  }
  const testing::TemporaryDirectory directory;
};

// Each difference is tested separately; the tensors are the same in all of them.
TEST_F(ModelRecord, RefusesWhatTensorsDoNotShow) {
  for (const auto& row :
       {std::pair<nlohmann::json, const char*>{{{"num_attention_heads", 4}},
                                               "num_attention_heads is 8 in "},
        {{{"num_key_value_heads", 2}}, "num_key_value_heads is 4 in "},
        {{{"rms_norm_eps", 1e-6}}, "rms_norm_eps is 1e-05 in "},
        {{{"rope_scaling", {{"rope_type", "linear"}}}}, "rope_scaling is null in "},
        {{{"hidden_act", "gelu"}}, "hidden_act is \"silu\" in "}}) {
    const nlohmann::json& change = row.first;
    const std::string said = test::error_text([&] { (void)check(change); });
    EXPECT_THAT(said, AllOf(HasSubstr(row.second), HasSubstr(directory / "config.json and "),
                            HasSubstr(change.begin()->dump() + " here"), Not(HasSubstr("\n"))));
  }
  EXPECT_THAT(
      test::error_text([&] { (void)check({{"num_attention_heads", 4}, {"hidden_act", "gelu"}}); }),
      AllOf(HasSubstr("num_attention_heads"), HasSubstr("hidden_act")));
}

TEST_F(ModelRecord, IgnoresFieldsWithoutEffectOnResults) {
  EXPECT_THAT(check(nlohmann::json::object()), IsEmpty());
  EXPECT_THAT(check({{"torch_dtype", "bfloat16"},
                     {"transformers_version", "5"},
                     {"_name_or_path", "here"},
                     {"architectures", {"Other"}},
                     {"a_new_field", 3}}),
              IsEmpty());
  EXPECT_THAT(check_same_model(directory.path(), nlohmann::json(), as_it_is), IsEmpty());
  EXPECT_THAT(check_same_model(directory / "without", kSaved, as_it_is), IsEmpty());
}

TEST_F(ModelRecord, ReportsChangesOfDropout) {
  const auto said = check({{"attention_dropout", 0.0}});
  ASSERT_EQ(said.size(), 1U);
  EXPECT_THAT(said[0], AllOf(HasSubstr("attention_dropout is 0.1 in "), HasSubstr("and 0.0 here")));
}

struct Model {
  const char* name;
  TaskKind kind;
  nlohmann::json config;
  const char* epsilon;
};
void PrintTo(const Model& model, std::ostream* out) { *out << model.name; }

std::vector<Model> models() {
  const nlohmann::json gpt2 = {{"model_type", "gpt2"}, {"vocab_size", 13}, {"n_positions", 8},
                               {"n_embd", 8},          {"n_layer", 1},     {"n_head", 2}};
  nlohmann::json llama = {
      {"model_type", "llama"},       {"vocab_size", 13},       {"hidden_size", 8},
      {"intermediate_size", 16},     {"num_hidden_layers", 1}, {"num_attention_heads", 2},
      {"max_position_embeddings", 8}};
  nlohmann::json bert = llama;
  bert["model_type"] = "bert";
  return {{"gpt2", TaskKind::causal_lm, gpt2, "layer_norm_epsilon"},
          {"llama", TaskKind::causal_lm, llama, "rms_norm_eps"},
          {"gpt2_tags", TaskKind::token_classification, gpt2, "layer_norm_epsilon"},
          {"llama_classes", TaskKind::text_classification, llama, "rms_norm_eps"},
          {"llama_answers", TaskKind::question_answering, llama, "rms_norm_eps"},
          {"bert", TaskKind::masked_lm, bert, "layer_norm_eps"},
          {"bert_classes", TaskKind::text_classification, bert, "layer_norm_eps"}};
}

class RecordOfTask : public ::testing::TestWithParam<Model> {};

// For every task, the record taken from the model equals the one read from its checkpoint, even for
// fields that only one of the two states.
TEST_P(RecordOfTask, IsWhatItsCheckpointsHave) {
  const Model& model = GetParam();
  const testing::TemporaryDirectory directory;
  const auto task_of = [&](double epsilon) {
    nlohmann::json config = model.config;
    config[model.epsilon] = epsilon;
    return make_task(model.kind, config, "config.json", nullptr);
  };
  const auto check = [&](const Task& task) {
    return check_same_model(directory.path(), task.configuration(),
                            [&](const nlohmann::json& config, std::string_view source) {
                              return task.configuration_of(config, source);
                            });
  };
  const auto saves = task_of(1e-4);
  saves->save_setup(directory.path());
  EXPECT_EQ(saves->configuration(),
            saves->configuration_of(read_json_file(directory / "config.json"), "config.json"));
  EXPECT_THAT(check(*saves), IsEmpty());
  const auto plain = make_task(model.kind, model.config, "config.json", nullptr);
  const auto smaller = task_of(1e-7);
  for (const Task* other : {smaller.get(), plain.get()})
    EXPECT_THAT(test::error_text([&] { (void)check(*other); }),
                HasSubstr(std::string(model.epsilon) + " is 0.0001 in "));
  plain->save_setup(directory.path());
  EXPECT_THAT(test::error_text([&] { (void)check(*saves); }),
              HasSubstr(std::string(model.epsilon) + " is 1e-"));
}

INSTANTIATE_TEST_SUITE_P(Models, RecordOfTask, ::testing::ValuesIn(models()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace shoal
