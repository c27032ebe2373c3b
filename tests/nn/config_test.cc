// Fields of a config.json, for every model: null counts as absent, and unknown ones are ignored.
#include "shoal/nn/models/encoder/config.h"

#include <algorithm>

#include "support/golden.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder_decoder/family.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"

namespace shoal::nn {
namespace {

using nlohmann::json;

// Null fields are written as they were read, but here they count as absent.
json without_nulls(json value) {
  if (!value.is_object()) return value;
  json all = json::object();
  for (const auto& [key, field] : value.items())
    if (!field.is_null()) all[key] = without_nulls(field);
  return all;
}

// The fields of the model, or the error if the configuration is refused.
std::string outcome(const json& config) {
  const std::string type = model_type_of(config);
  try {
    if (std::ranges::count(causal_lm_types(), type) > 0)
      return without_nulls(complete_causal_lm_config(config, "config.json")).dump();
    if (is_encoder_decoder_type(type))
      return EncoderDecoderConfig::from_json(config, "config.json").known_fields().dump();
    EncoderConfig read = EncoderConfig::from_json(config, "config.json");
    read.source.clear();  // unknown fields are written as they were read
    return read.to_json(EncoderTask::token_classification, "float32").dump();
  } catch (const Error& error) {
    return error.message();
  }
}

class ConfigOfAModel : public ::testing::TestWithParam<const char*> {};

json config_of(const std::string& name) {
  return read_json_file(testing::golden_path(name + "/config.json"));
}

TEST_P(ConfigOfAModel, HasNullAsAbsent) {
  json config = config_of(GetParam());
  config.update({{"num_labels", 3},
                 {"problem_type", "regression"},
                 {"quantization_config", json::object()},
                 {"pruned_heads", json::object()},
                 {"is_decoder", false},
                 {"position_embedding_type", "absolute"},
                 {"hidden_dropout", 0.1},
                 {"classifier_dropout", 0.25},
                 {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
                 {"id2label", {{"0", "a"}, {"1", "b"}, {"2", "c"}}},
                 {"label2id", {{"a", 0}, {"b", 1}, {"c", 2}}}});
  const auto compare = [&](const json::json_pointer& at) {
    // In transformers null means None here, but an absent field has the class's default.
    if (at.back().ends_with("_token_id") || at.back().ends_with("softcapping") ||
        at.back() == "sliding_window")
      return;
    json absent = config, null = config;
    absent[at.parent_pointer()].erase(at.back());
    null[at] = nullptr;
    EXPECT_EQ(outcome(null), outcome(absent)) << at.to_string();
  };
  for (const auto& [key, value] : config.items()) {
    compare(json::json_pointer() / key);
    if (key.starts_with("rope_"))
      for (const auto& [inner, unused] : value.items()) compare(json::json_pointer() / key / inner);
  }
}

// Fields that no model knows change nothing: of any type, beside known ones and inside them.
TEST_P(ConfigOfAModel, IgnoresUnknownFields) {
  const json config = config_of(GetParam());
  // complete_causal_lm_config() keeps them.
  const auto without = [](json fields) {
    std::erase_if(fields.get_ref<json::object_t&>(),
                  [](const auto& field) { return field.first.starts_with("a_field_of"); });
    return fields;
  };
  const json known = json::parse(outcome(config));
  json more = config;
  more["a_field_of_tomorrow"] = {{"list", {1, nullptr, 2.5}}, {"vocab_size", 7}};
  more["a_field_of_today"] = "as it was";
  more["a_field_of_yesterday"] = true;
  more["task_specific_params"] = {{"summarization", {{"num_beams", 4}, {"d_model", 7}}}};
  json read = without(json::parse(outcome(more)));
  read.erase("task_specific_params");
  EXPECT_EQ(read, known);
}

INSTANTIATE_TEST_SUITE_P(Models, ConfigOfAModel,
                         ::testing::Values("gpt2/odd", "llama/tied", "llama/untied",
                                           "mistral/windows", "qwen2/tied", "qwen3/windows",
                                           "gpt_neox/parallel", "gemma/tied", "gemma2/windows",
                                           "gemma3_text/windows", "encoders/bert",
                                           "encoders/roberta", "encoders/distilbert",
                                           "encoders/albert", "encoders/xlm-roberta",
                                           "encoders/electra", "encoders/modernbert",
                                           "encoder_decoders/t5", "encoder_decoders/t5_v1_1",
                                           "encoder_decoders/bart", "encoder_decoders/mbart"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::ranges::replace(name, '/', '_');
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace shoal::nn
