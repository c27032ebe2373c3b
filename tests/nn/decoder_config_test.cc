// config.json of decoders: refusals, rotary positions compared with transformers
// (tools/golden/make_decoders.py), sliding windows, and the sizes of published checkpoints.
#include <cmath>
#include <functional>

#include "support/error_text.h"
#include "support/golden.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/decoder/family.h"
#include "shoal/runtime/io/json.h"

namespace shoal::nn {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const json& config) {
  return test::error_text([&] { (void)DecoderConfig::from_json(config, "config.json"); });
}

TEST(DecoderConfigFile, ErrorsAreOneClearLine) {
  const json tied = read_json_file(testing::golden_path("llama/tied/config.json"));
  const auto with = [&tied](const char* key, const json& value) {
    json config = tied;
    config[key] = value;
    return refusal(config);
  };
  EXPECT_THAT(with("model_type", "mamba"),
              HasSubstr("model_type \"mamba\", which is no causal language model that Shoal knows; "
                        "gpt2, llama, mistral, qwen2, qwen3, gpt_neox, gemma, gemma2, "
                        "gemma3_text are"));
  EXPECT_THAT(with("hidden_act", "gelu"),
              HasSubstr("does not describe a Llama: hidden_act 'gelu' is not supported; silu is"));
  EXPECT_THAT(with("num_key_value_heads", 3), HasSubstr("4 is not a multiple of num_key"));
  EXPECT_THAT(with("rope_parameters", {{"rope_type", "axial"}}),
              HasSubstr("rope_type 'axial' is not supported; default, linear, dynamic, yarn, "));
  EXPECT_THAT(with("rope_scaling", {{"type", "dynamic"}}), HasSubstr("dynamic needs factor"));
  EXPECT_THAT(with("rope_scaling", {{"type", "linear"}, {"factor", 0.5}}), HasSubstr("below 1"));
  EXPECT_THAT(with("rope_scaling", {{"type", "llama3"}, {"factor", 2.0}}),
              HasSubstr("llama3 needs low_freq_factor and high_freq_factor"));
  EXPECT_THAT(with("rope_scaling", {{"type", "longrope"}, {"short_factor", {1.0}}}),
              HasSubstr("1 numbers in short_factor, where heads of 4 channels need 2"));
  EXPECT_THAT(with("rope_parameters", {{"partial_rotary_factor", 0.5}}),
              HasSubstr("only whole heads turn here"));
  EXPECT_THAT(with("rope_parameters", {{"full_attention", {{"rope_theta", 5.0}}}}),
              HasSubstr("all layers have the same here"));
  EXPECT_THAT(with("quantization_config", {{"bits", 4}}), HasSubstr("quantization_config"));
  EXPECT_THAT(with("hidden_size", "wide"), HasSubstr("hidden_size: \"wide\""));
  EXPECT_THAT(with("head_dim", 5), HasSubstr("5 of a head's 5 channels turn"));
  EXPECT_THAT(with("attention_dropout", 1.5), HasSubstr("attention_dropout 1.5 is not in [0, 1)"));
}

TEST(DecoderConfigFile, ErrorsOfOtherFamiliesAreOneClearLine) {
  const auto with = [](const char* type, const char* key, const json& value) {
    return refusal({{"model_type", type}, {key, value}});
  };
  EXPECT_THAT(with("gpt_neox", "rotary_pct", 1.5), HasSubstr("rotary_pct 1.5 is not in (0, 1]"));
  EXPECT_THAT(with("gpt_neox", "rotary_pct", 0.01),
              HasSubstr("0 of a head's 96 channels turn: rotary positions turn pairs"));
  EXPECT_THAT(with("gemma", "hidden_act", "silu"), HasSubstr("gelu_pytorch_tanh, gelu are"));
  EXPECT_THAT(with("gemma", "use_bidirectional_attention", true),
              HasSubstr("use_bidirectional_attention: true, which is not supported"));
  EXPECT_THAT(with("gemma3_text", "query_pre_attn_scalar", 0),
              HasSubstr("scalar 0 is not above 0"));
  EXPECT_THAT(with("gemma3_text", "sliding_window_pattern", -1), HasSubstr("pattern -1 is not"));
  EXPECT_THAT(with("gemma3_text", "sliding_window", nullptr),
              HasSubstr("sliding_window_pattern 6 without a window; set sliding_window"));
  EXPECT_THAT(with("gemma3_text", "rope_local_base_freq", 0), HasSubstr("freq 0 is not above 0"));
  EXPECT_THAT(with("gemma3_text", "final_logit_softcapping", 30.0),
              HasSubstr("has final_logit_softcapping, which is not supported"));
  EXPECT_THAT(with("gemma3_text", "attn_logit_softcapping", 50.0),
              HasSubstr("has attn_logit_softcapping, which is not supported"));
  EXPECT_THAT(with("gemma", "attn_logit_softcapping", 50.0), HasSubstr("is not supported"));
  EXPECT_THAT(
      with("gemma2", "attn_logit_softcapping", -50.0),
      HasSubstr("attn_logit_softcapping -50 is not above 0; give a positive number, or null"));
  EXPECT_THAT(with("gemma2", "final_logit_softcapping", 0),
              HasSubstr("final_logit_softcapping 0 is not above 0"));
  EXPECT_THAT(with("gemma2", "final_logit_softcapping", "30"), HasSubstr("a number is expected"));
  EXPECT_THAT(with("gemma3_text", "rope_parameters",
                   {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}}),
              HasSubstr("scales the positions of sliding_attention, which is not supported"));
}

// Layers with windows have a base of their own, and only the others are scaled.
TEST(DecoderConfigFile, PositionsOfLayersWithWindowsAreRead) {
  const json plain{{"model_type", "gemma3_text"}, {"head_dim", 4}};
  const auto second = [](const json& config) {
    const DecoderConfig read = DecoderConfig::from_json(config, "config.json");
    return std::pair(read.rotary_angles().frequencies[1], read.local_angles().frequencies[1]);
  };
  const auto is = [](double global, double local) {
    return ::testing::Pair(::testing::FloatNear(static_cast<float>(global), 1e-8F),
                           ::testing::FloatNear(static_cast<float>(local), 1e-8F));
  };
  EXPECT_THAT(second(plain), is(1e-3, 1e-2));
  json four = plain, five = plain;
  four["rope_theta"] = 1e4;
  four["rope_local_base_freq"] = 400;
  four["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  five["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e4}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 400}}}};
  EXPECT_THAT(second(four), is(1e-2 / 8, 0.05));
  EXPECT_EQ(second(four), second(five));
  DecoderConfig changed = DecoderConfig::from_json(five, "config.json");
  EXPECT_EQ(second(changed.to_json("float32")), second(five));
  changed.rope_local_theta = 100;
  EXPECT_THAT(second(changed.to_json("float32")), is(1e-2 / 8, 0.1));
  json completed = complete_causal_lm_config(five, "config.json");
  EXPECT_EQ(second(completed), second(five));
}

TEST(DecoderConfigFile, PartsOfHeadsThatTurnAreRead) {
  const auto turning = [](const json& more) {
    json config{{"model_type", "gpt_neox"}, {"hidden_size", 32}, {"num_attention_heads", 2}};
    config.update(more);
    const DecoderConfig read = DecoderConfig::from_json(config, "config.json");
    const DecoderConfig again = DecoderConfig::from_json(read.to_json("float32"), "again");
    EXPECT_EQ(again.rotary_angles().frequencies, read.rotary_angles().frequencies);
    return read.rotary_angles().frequencies.size();
  };
  EXPECT_EQ(turning(json::object()), 2U);
  EXPECT_EQ(turning({{"rotary_pct", 0.5}}), 4U);
  EXPECT_EQ(turning({{"rope_parameters", {{"partial_rotary_factor", 1.0}}}}), 8U);
  // The object has priority.
  EXPECT_EQ(turning({{"rotary_pct", 0.5}, {"rope_scaling", {{"partial_rotary_factor", 0.75}}}}),
            6U);
  DecoderConfig changed = DecoderConfig::from_json(
      {{"model_type", "gpt_neox"}, {"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, "one");
  changed.rotary_fraction = 0.75;
  EXPECT_EQ(DecoderConfig::from_json(changed.to_json("float32"), "two").rotary_fraction, 0.75);
}

// transformers 4 wrote rope_theta beside rope_scaling; version 5 writes both into rope_parameters.
TEST(DecoderConfigFile, BothSpellingsOfRotaryPositionsAreRead) {
  const auto frequencies = [](const json& config) {
    return DecoderConfig::from_json(config, "config.json").rotary_angles().frequencies;
  };
  const json plain{{"model_type", "llama"}, {"hidden_size", 16}, {"num_attention_heads", 2}};
  json four = plain, five = plain;
  four["rope_theta"] = five["rope_parameters"]["rope_theta"] = 500.0;
  EXPECT_NEAR(frequencies(plain)[1], 0.1f, 1e-7);
  EXPECT_NEAR(frequencies(four)[2], 1 / std::sqrt(500.0), 1e-7);
  EXPECT_EQ(frequencies(four), frequencies(five));
  four["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  five["rope_parameters"]["rope_type"] = "linear";
  five["rope_parameters"]["factor"] = 4.0;
  EXPECT_NEAR(frequencies(four)[0], 0.25f, 1e-7);
  EXPECT_EQ(frequencies(four), frequencies(five));
  // A saved configuration keeps them.
  EXPECT_EQ(frequencies(DecoderConfig::from_json(five, "five").to_json("float32")),
            frequencies(five));
}

std::vector<double> close_to(const std::vector<float>& ours, const json& theirs) {
  std::vector<double> apart;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    const double want = theirs[i].get<double>();
    if (i >= ours.size() || std::abs(static_cast<double>(ours[i]) - want) > 1e-6 * want)
      apart.push_back(want);
  }
  return apart;
}

TEST(RotaryAngles, EqualTransformers) {
  const json rows = read_json_file(testing::golden_path("rope.json"));
  ASSERT_EQ(rows.size(), 11U);
  for (const json& row : rows) {
    SCOPED_TRACE(row["config"].dump());
    const DecoderConfig config = DecoderConfig::from_json(row["config"], "config.json");
    const RotaryAngles angles = config.rotary_angles();
    EXPECT_EQ(angles.frequencies.size(), row["frequencies"].size());
    EXPECT_THAT(close_to(angles.frequencies, row["frequencies"]), ElementsAre());
    EXPECT_NEAR(angles.scale, row["scale"].get<double>(), 1e-6);
    EXPECT_EQ(angles.long_frequencies.empty(), !row.contains("long_frequencies"));
    if (!row.contains("long_frequencies")) continue;
    EXPECT_EQ(angles.short_positions, 16);
    EXPECT_THAT(close_to(angles.long_frequencies, row["long_frequencies"]), ElementsAre());
  }
}

TEST(SlidingWindow, IsThatOfTheLayer) {
  const auto windows = [](json config) {
    config["num_hidden_layers"] = 3;
    const DecoderConfig read = DecoderConfig::from_json(config, "config.json");
    return std::vector{read.window(0), read.window(1), read.window(2)};
  };
  EXPECT_THAT(windows({{"model_type", "llama"}, {"sliding_window", 9}}), ElementsAre(0, 0, 0));
  EXPECT_THAT(windows({{"model_type", "mistral"}}), ElementsAre(4096, 4096, 4096));
  EXPECT_THAT(windows({{"model_type", "mistral"}, {"sliding_window", nullptr}}),
              ElementsAre(0, 0, 0));
  EXPECT_THAT(windows({{"model_type", "mistral"}, {"max_position_embeddings", 4096}}),
              ElementsAre(0, 0, 0));
  json qwen{{"model_type", "qwen2"}, {"sliding_window", 8}, {"max_window_layers", 2}};
  EXPECT_THAT(windows(qwen), ElementsAre(0, 0, 0));
  qwen["use_sliding_window"] = true;
  EXPECT_THAT(windows(qwen), ElementsAre(0, 0, 8));
  qwen["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(windows(qwen), ElementsAre(8, 0, 8));
  json gemma{{"model_type", "gemma3_text"}, {"sliding_window_pattern", 2}};
  EXPECT_THAT(windows(gemma), ElementsAre(4096, 0, 4096));
  gemma["layer_types"] = {"full_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(windows(gemma), ElementsAre(0, 0, 4096));
  EXPECT_THAT(windows({{"model_type", "gemma2"}, {"sliding_window", 7}}), ElementsAre(7, 0, 7));
  qwen["num_hidden_layers"] = 2;
  EXPECT_THAT(refusal(qwen), HasSubstr("layer_types has 3 entries for 2 layers"));
  qwen["num_hidden_layers"] = 3;
  qwen["use_sliding_window"] = false;
  EXPECT_THAT(refusal(qwen), HasSubstr("layer_types names sliding_attention without a window"));
  qwen["layer_types"] = {"linear_attention", "full_attention", "full_attention"};
  EXPECT_THAT(refusal(qwen), HasSubstr("layer type 'linear_attention' is not supported"));
  qwen["layer_types"] = "full_attention";
  EXPECT_THAT(refusal(qwen), HasSubstr("where a list of strings is expected"));
  EXPECT_THAT(refusal({{"model_type", "mistral"}, {"sliding_window", 0}}),
              HasSubstr("sliding_window 0 is not above 0"));
}

TEST(SoftCaps, AreReadAndKept) {
  const auto caps = [](const json& more) {
    json config{{"model_type", "gemma2"}};
    config.update(more);
    const DecoderConfig read = DecoderConfig::from_json(config, "config.json");
    const DecoderConfig again = DecoderConfig::from_json(read.to_json("float32"), "again");
    EXPECT_EQ(again.attention_soft_cap, read.attention_soft_cap);
    EXPECT_EQ(again.logit_soft_cap, read.logit_soft_cap);
    return std::pair(read.attention_soft_cap.value_or(0), read.logit_soft_cap.value_or(0));
  };
  EXPECT_EQ(caps(json::object()), std::pair(50.0, 30.0));
  EXPECT_EQ(caps({{"attn_logit_softcapping", 7}, {"final_logit_softcapping", 2.5}}),
            std::pair(7.0, 2.5));
  EXPECT_EQ(caps({{"attn_logit_softcapping", nullptr}}), std::pair(0.0, 30.0));
  EXPECT_EQ(caps({{"final_logit_softcapping", nullptr}}), std::pair(50.0, 0.0));
}

// The fields that checkpoints on Hugging Face's Hub have, and their published sizes.
TEST(PublishedCheckpoints, HaveTheirNumberOfParameters) {
  const json all = read_json_file(testing::golden_path("checkpoint_configs.json"));
  int decoders = 0;
  for (const auto& [name, one] : all.items()) {
    if (find_decoder_family(one["config"]["model_type"].get<std::string>()) == nullptr) continue;
    ++decoders;
    const auto model = make_causal_lm(one["config"], name);
    std::int64_t count = 0;
    for (const Parameter* parameter : model->parameters()) count += parameter->shape().count();
    EXPECT_EQ(count, one["parameters"].get<std::int64_t>()) << name;
    const json saved = model->config().to_json(one["config"]["torch_dtype"].get<std::string>());
    for (const auto& [field, value] : one["config"].items())
      EXPECT_EQ(saved[field], value) << name << " " << field;
  }
  EXPECT_EQ(decoders, 24);
}

}  // namespace
}  // namespace shoal::nn
