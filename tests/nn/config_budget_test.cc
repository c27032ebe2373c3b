// Reading a config.json of a few hundred bytes takes only proportional time and memory,
// whatever sizes it states.
#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"
#include "support/error_text.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/decoder/config.h"
#include "shoal/nn/models/encoder/config.h"
#include "shoal/nn/models/huggingface.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::nn {
namespace {

using nlohmann::json;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::within_budget;

class ConfigSizes : public ::testing::TestWithParam<const char*> {
 protected:
  const std::string type = GetParam();
  // A model of a few hundred parameters.
  json small() const {
    if (type == "gpt2")
      return {{"model_type", type}, {"vocab_size", 8}, {"n_positions", 8}, {"n_embd", 8},
              {"n_layer", 1},       {"n_head", 1},     {"n_inner", 8}};
    if (type == "llama")
      return {{"model_type", type},       {"vocab_size", 8},        {"hidden_size", 8},
              {"intermediate_size", 8},   {"num_hidden_layers", 1}, {"num_attention_heads", 1},
              {"num_key_value_heads", 1}, {"head_dim", 8},          {"max_position_embeddings", 8}};
    if (type == "distilbert")
      return {{"model_type", type}, {"vocab_size", 8}, {"max_position_embeddings", 8},
              {"dim", 8},           {"n_layers", 1},   {"n_heads", 1},
              {"hidden_dim", 8}};
    json config{{"model_type", type},     {"vocab_size", 8},
                {"hidden_size", 8},       {"intermediate_size", 8},
                {"num_hidden_layers", 1}, {"num_attention_heads", 1},
                {"type_vocab_size", 2},   {"max_position_embeddings", 8}};
    if (type == "albert")
      config.update({{"embedding_size", 8}, {"num_hidden_groups", 1}, {"inner_group_num", 1}});
    return config;
  }
  void read(const json& config) const {
    if (type == "gpt2" || type == "llama")
      (void)complete_causal_lm_config(config, "config.json");
    else
      (void)EncoderConfig::from_json(config, "config.json");
    if (type == "llama") (void)DecoderConfig::from_json(config, "config.json").rotary_angles();
  }
};

TEST_P(ConfigSizes, AreBounded) {
  const testing::TemporaryDirectory directory;
  const std::vector<float> values(256, 0.0F);
  write_safetensors(directory.path() + "/model.safetensors",
                    {{"w", ConstView(values.data(), {256}, DType::f32)}});
  const json config = small();
  EXPECT_EQ(within_budget(config.dump().size(), "small",
                          [&] {
                            read(config);
                            check_sizes(config, "config.json", directory.path());
                          }),
            "");
  for (const auto& [field, value] : config.items()) {
    if (!value.is_number()) continue;
    for (const std::int64_t size : {std::int64_t{1} << 24, std::int64_t{1} << 31,
                                    std::int64_t{1} << 53, std::int64_t{1} << 62, INT64_MAX}) {
      json other = config;
      other[field] = size;
      const std::string name = field + " " + std::to_string(size);
      const std::string problem = within_budget(other.dump().size(), name, [&] {
        read(other);
        check_sizes(other, "config.json", directory.path());
      });
      // Llama's positions take no memory until they are used.
      if (type == "llama" && field == "max_position_embeddings" && size < std::int64_t{1} << 31) {
        EXPECT_EQ(problem, "") << name;
        continue;
      }
      EXPECT_THAT(problem, AnyOf(HasSubstr("beyond reason"), HasSubstr("out of range"),
                                 HasSubstr("is not a multiple of"), HasSubstr("groups for"),
                                 HasSubstr("the weights beside it have 1024 bytes")))
          << name;
    }
  }
}

// Each size is possible, but their product does not fit into 64 bits.
TEST_P(ConfigSizes, AreBoundedTogether) {
  json config = small();
  for (auto it = config.begin(); it != config.end(); ++it) {
    const std::string& field = it.key();
    const bool is_depth =
        field == "n_layer" || field.ends_with("layers") || field.ends_with("hidden_groups");
    const bool is_width = field.ends_with("size") || field == "n_embd" || field == "n_inner" ||
                          field == "dim" || field == "hidden_dim";
    if (is_depth) *it = 10'000;
    if (is_width) *it = 1 << 22;
  }
  EXPECT_THAT(within_budget(config.dump().size(), type, [&] { read(config); }),
              HasSubstr("parameters is beyond reason"));
}

INSTANTIATE_TEST_SUITE_P(Families, ConfigSizes,
                         ::testing::Values("gpt2", "llama", "bert", "roberta", "distilbert",
                                           "albert"),
                         [](const auto& test) { return std::string(test.param); });

TEST(AlbertSizes, BoundTheBlocksOfAllGroups) {
  const json config = {{"model_type", "albert"},
                       {"hidden_size", 64},
                       {"num_hidden_layers", 10'000},
                       {"num_hidden_groups", 10'000},
                       {"inner_group_num", 10'000}};
  EXPECT_THAT(test::error_text([&] { (void)EncoderConfig::from_json(config, "config.json"); }),
              HasSubstr("inner_group_num 10000 for each of 10000 layers is beyond reason"));
}

TEST(ConfigLists, AreWrittenInLinearTime) {
  json config{{"model_type", "llama"}};
  for (int i = 0; i < 32'000; ++i)
    config["id2label"][std::to_string(i)] = "name " + std::to_string(i);
  const std::size_t bytes = config.dump().size();
  EXPECT_EQ(within_budget(2 * bytes, "a decoder's",
                          [&] {
                            (void)DecoderConfig::from_json(config, "config.json")
                                .known_fields(DecoderHead::sequence_classification);
                          }),
            "");
  config["model_type"] = "bert";
  EXPECT_EQ(
      within_budget(2 * bytes, "an encoder's",
                    [&] { (void)EncoderConfig::from_json(config, "config.json").known_fields(); }),
      "");
}

TEST(ModelType, IsTheFamilyOfTheArchitectures) {
  const auto type_of = [](const json& classes) {
    return model_type_of(json{{"model_type", nullptr}, {"architectures", classes}});
  };
  EXPECT_EQ(type_of({"GPT2LMHeadModel"}), "gpt2");
  EXPECT_EQ(type_of({"LlamaForCausalLM"}), "llama");
  EXPECT_EQ(type_of({"Qwen3ForCausalLM"}), "qwen3");
  EXPECT_EQ(type_of({"BertForPreTraining"}), "bert");
  EXPECT_EQ(type_of({"RobertaForMaskedLM"}), "roberta");
  EXPECT_EQ(type_of({"DistilBertModel", "DistilBertForMaskedLM"}), "distilbert");
  EXPECT_EQ(type_of({"AlbertForSequenceClassification"}), "albert");
  for (const json& other :
       {json(nullptr), json::array(), json("LlamaForCausalLM"), json{5}, json{"MambaForCausalLM"},
        json{"BertGenerationEncoder"}, json{"LlamaForCausalLM", "BertModel"}})
    EXPECT_EQ(type_of(other), "") << other;
  EXPECT_EQ(model_type_of(json{{"model_type", "gpt2"}, {"architectures", {"BertModel"}}}), "gpt2");
}

TEST(ModelType, IsNeverAGuess) {
  for (const json& config : {json::object(), json{{"model_type", nullptr}},
                             json{{"architectures", {"MambaForCausalLM"}}}})
    for (const std::function<void()>& opens : std::vector<std::function<void()>>{
             [&] { (void)make_causal_lm(config, "dir/config.json"); },
             [&] { (void)complete_causal_lm_config(config, "dir/config.json"); },
             [&] { (void)EncoderConfig::from_json(config, "dir/config.json"); },
             [&] { (void)with_model_type(config, "dir/config.json"); }})
      EXPECT_THAT(test::error_text(opens),
                  ::testing::StartsWith("dir/config.json names no model_type; give --model_type"));
  const json llama = with_model_type({{"architectures", {"LlamaForCausalLM"}}}, "config.json");
  EXPECT_EQ(llama["model_type"], "llama");
  EXPECT_EQ(complete_causal_lm_config({{"architectures", {"LlamaForCausalLM"}}},
                                      "config.json")["model_type"],
            "llama");
  EXPECT_THAT(test::error_text([] { (void)with_model_type({{"model_type", 5}}, "config.json"); }),
              HasSubstr("has model_type: 5, where a string is expected"));
}

}  // namespace
}  // namespace shoal::nn
