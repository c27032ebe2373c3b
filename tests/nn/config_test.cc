// A null field in a config.json counts as absent, for every model.
#include "shoal/nn/models/encoder/config.h"

#include <algorithm>

#include "support/golden.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/causal_lm.h"
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
std::string outcome(const json& config, bool encoder) {
  try {
    if (!encoder) return without_nulls(complete_causal_lm_config(config, "config.json")).dump();
    EncoderConfig read = EncoderConfig::from_json(config, "config.json");
    read.source.clear();  // unknown fields are written as they were read
    return read.to_json(EncoderTask::token_classification, "float32").dump();
  } catch (const Error& error) {
    return error.message();
  }
}

class ConfigOfAModel : public ::testing::TestWithParam<const char*> {};

TEST_P(ConfigOfAModel, HasNullAsAbsent) {
  const std::string name = GetParam();
  const bool encoder = name.starts_with("encoders/");
  json config = read_json_file(testing::golden_path(name + "/config.json"));
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
    if (at.back().ends_with("_token_id")) return;
    json absent = config, null = config;
    absent[at.parent_pointer()].erase(at.back());
    null[at] = nullptr;
    EXPECT_EQ(outcome(null, encoder), outcome(absent, encoder)) << at.to_string();
  };
  for (const auto& [key, value] : config.items()) {
    compare(json::json_pointer() / key);
    if (key.starts_with("rope_"))
      for (const auto& [inner, unused] : value.items()) compare(json::json_pointer() / key / inner);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ConfigOfAModel,
                         ::testing::Values("gpt2/odd", "llama/tied", "llama/untied",
                                           "encoders/bert", "encoders/roberta",
                                           "encoders/distilbert", "encoders/albert"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace shoal::nn
