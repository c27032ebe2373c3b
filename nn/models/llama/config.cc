#include "shoal/nn/models/llama/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/config_reader.h"
#include "shoal/nn/models/written_config.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"

namespace shoal::nn {
namespace {

// `object`: rope_scaling, or the rope_parameters of transformers 5, which contain rope_theta, too.
void read_rotary(const nlohmann::json& object, std::string_view name, LlamaConfig& config) {
  const ConfigReader read(object, name);
  RopeScaling& scaling = config.rope_scaling;
  read.text("type", scaling.rope_type);  // the older name
  read.text("rope_type", scaling.rope_type);
  read.number("rope_theta", config.rope_theta);
  read.number("factor", scaling.factor);
  read.number("low_freq_factor", scaling.low_freq_factor);
  read.number("high_freq_factor", scaling.high_freq_factor);
  read.integer("original_max_position_embeddings", scaling.original_max_position_embeddings);
  double rotated = 1;
  read.number("partial_rotary_factor", rotated);
  if (rotated != 1)
    read.fail(fmt::format("has partial_rotary_factor {}: only whole heads turn here", rotated));
}

}  // namespace

LlamaConfig LlamaConfig::from_json(const nlohmann::json& object, std::string_view name) {
  const ConfigReader read(object, name);
  std::string type = "llama", act = "silu";
  read.text("model_type", type);
  if (type != "llama")
    read.fail(fmt::format("has model_type {}, where llama is expected", shortened(type)));
  LlamaConfig config;
  read.integer("vocab_size", config.vocab_size);
  read.integer("hidden_size", config.hidden_size);
  read.integer("intermediate_size", config.intermediate_size);
  read.integer("num_hidden_layers", config.num_hidden_layers);
  read.integer("num_attention_heads", config.num_attention_heads);
  read.integer("num_key_value_heads", config.num_key_value_heads);
  read.integer("head_dim", config.head_dim);
  read.integer("max_position_embeddings", config.max_position_embeddings);
  read.number("rms_norm_eps", config.rms_norm_eps);
  read.number("rope_theta", config.rope_theta);
  read.number("initializer_range", config.initializer_range);
  read.number("attention_dropout", config.attention_dropout);
  read.boolean("attention_bias", config.attention_bias);
  read.boolean("mlp_bias", config.mlp_bias);
  read.boolean("tie_word_embeddings", config.tie_word_embeddings);
  read.optional_integer("bos_token_id", config.bos_token_id);
  read.optional_integer("pad_token_id", config.pad_token_id);
  config.labels = DecoderLabels::read(read);
  bool token_bias = true;
  read.boolean("token_classification_bias", token_bias);
  if (!token_bias) read.fail("has token_classification_bias: false, which is not supported");
  // Llama 3 has a list of ids. Generation stops at the tokenizer's end-of-text instead.
  read.first_integer("eos_token_id", config.eos_token_id);
  for (const char* key : {"rope_parameters", "rope_scaling"})
    if (const auto* found = read.find(key))
      read_rotary(*found, fmt::format("{}, {}", name, key), config);
  read.text("hidden_act", act);
  if (act != "silu") read.fail(fmt::format("has hidden_act {}; silu is supported", shortened(act)));
  read.refuse_true("is_encoder_decoder");
  read.refuse_true("add_cross_attention");
  read.refuse_filled("quantization_config");
  read.refuse_filled("pruned_heads");
  try {
    config.check();
  } catch (const Error& error) {
    read.fail(fmt::format("does not describe a Llama: {}", error.message()));
  }
  config.source = object.dump();
  return config;
}

nlohmann::ordered_json LlamaConfig::known_fields(DecoderHead head) const {
  const auto or_null = [](const std::optional<std::int64_t>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json out;
  out["attention_bias"] = attention_bias;
  out["attention_dropout"] = attention_dropout;
  out["bos_token_id"] = or_null(bos_token_id);
  out["eos_token_id"] = or_null(eos_token_id);
  out["head_dim"] = head_channels();
  out["hidden_act"] = "silu";
  out["hidden_size"] = hidden_size;
  out["initializer_range"] = initializer_range;
  out["intermediate_size"] = intermediate_size;
  out["max_position_embeddings"] = max_position_embeddings;
  out["mlp_bias"] = mlp_bias;
  out["model_type"] = "llama";
  out["num_attention_heads"] = num_attention_heads;
  out["num_hidden_layers"] = num_hidden_layers;
  out["num_key_value_heads"] = key_heads();
  out["pad_token_id"] = or_null(pad_token_id);
  out["rms_norm_eps"] = rms_norm_eps;
  // Written as in transformers 4; version 5 reads it, too.
  out["rope_scaling"] = nullptr;
  if (rope_scaling.rope_type != "default") {
    nlohmann::ordered_json scaling{{"rope_type", rope_scaling.rope_type},
                                   {"factor", rope_scaling.factor}};
    if (rope_scaling.rope_type == "llama3") {
      scaling["low_freq_factor"] = rope_scaling.low_freq_factor;
      scaling["high_freq_factor"] = rope_scaling.high_freq_factor;
      scaling["original_max_position_embeddings"] = rope_scaling.original_max_position_embeddings;
    }
    out["rope_scaling"] = std::move(scaling);
  }
  out["rope_theta"] = rope_theta;
  out["tie_word_embeddings"] = tie_word_embeddings;
  out["use_cache"] = true;
  out["vocab_size"] = vocab_size;
  labels.write(head, out);
  return out;
}

nlohmann::ordered_json LlamaConfig::to_json(std::string_view dtype, DecoderHead head) const {
  const nlohmann::ordered_json now = known_fields(head);
  const nlohmann::ordered_json before =
      source.empty()
          ? now
          : from_json(parse_json(source, "config.json"), "config.json").known_fields(head);
  nlohmann::ordered_json out = written_config(
      {.read = source,
       .architecture = head == DecoderHead::causal_lm ? std::string("LlamaForCausalLM")
                                                      : fmt::format("Llama{}", class_suffix(head)),
       .dtype = dtype},
      before, now);
  if (before["rope_theta"] != now["rope_theta"] || before["rope_scaling"] != now["rope_scaling"]) {
    out.erase("rope_parameters");
    for (const char* name : {"rope_theta", "rope_scaling"}) out[name] = now[name];
  }
  return out;
}

void LlamaConfig::spell_plainly(nlohmann::json& json) {
  const nlohmann::json* parameters = find_field(json, "rope_parameters");
  if (parameters == nullptr) return;
  nlohmann::json scaling = *parameters;
  scaling.erase("rope_theta");
  json["rope_scaling"] = std::move(scaling);
  json.erase("rope_parameters");
}

void LlamaConfig::check() const {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;  // ids are i32
  for (const auto& [size, most] : {std::pair{vocab_size, kLimit - 1},
                                   {hidden_size, kMostWidth},
                                   {intermediate_size, kMostWidth},
                                   {num_attention_heads, kMostWidth},
                                   {max_position_embeddings, kLimit - 1}})
    SHOAL_CHECK(
        size > 0 && size <= most && num_hidden_layers >= 0 && num_hidden_layers <= kMostLayers,
        "vocab_size {}, hidden_size {}, intermediate_size {}, num_attention_heads {}, "
        "max_position_embeddings {} or num_hidden_layers {} is beyond reason",
        vocab_size, hidden_size, intermediate_size, num_attention_heads, max_position_embeddings,
        num_hidden_layers);
  SHOAL_CHECK(num_key_value_heads >= 0 && num_attention_heads % key_heads() == 0,
              "num_attention_heads {} is not a multiple of num_key_value_heads {}",
              num_attention_heads, num_key_value_heads);
  SHOAL_CHECK(head_dim > 0 || (head_dim == 0 && hidden_size % num_attention_heads == 0),
              "hidden_size {} is not a multiple of num_attention_heads {}, and head_dim is {}",
              hidden_size, num_attention_heads, head_dim);
  SHOAL_CHECK(head_channels() <= kMostHeadWidth, "heads of {} channels are beyond reason",
              head_channels());
  check_parameters(trunk_parameters());
  SHOAL_CHECK(head_channels() % 2 == 0, "heads of {} channels: rotary positions turn pairs",
              head_channels());
  SHOAL_CHECK(attention_dropout >= 0 && attention_dropout < 1,
              "attention_dropout {} is not in [0, 1)", attention_dropout);
  labels.check();
  SHOAL_CHECK(rms_norm_eps > 0 && initializer_range >= 0 && rope_theta > 0,
              "rms_norm_eps {}, initializer_range {}, rope_theta {}", rms_norm_eps,
              initializer_range, rope_theta);
  const RopeScaling& s = rope_scaling;
  SHOAL_CHECK(s.rope_type == "default" || s.rope_type == "linear" || s.rope_type == "llama3",
              "rope_type '{}' is not supported; default, linear and llama3 are",
              shortened(s.rope_type));
  SHOAL_CHECK(s.factor >= 1 && s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor &&
                  s.original_max_position_embeddings > 0,
              "rope_type {} with factor {}, low_freq_factor {}, high_freq_factor {}, "
              "original_max_position_embeddings {}",
              s.rope_type, s.factor, s.low_freq_factor, s.high_freq_factor,
              s.original_max_position_embeddings);
}

double LlamaConfig::trunk_parameters() const {
  const auto c = static_cast<double>(hidden_size), f = static_cast<double>(intermediate_size);
  const auto heads =
      static_cast<double>(head_channels()) * static_cast<double>(num_attention_heads + key_heads());
  return static_cast<double>(vocab_size) * c +
         static_cast<double>(num_hidden_layers) * (2 * heads + 3 * f) * c;
}

std::vector<float> LlamaConfig::rotary_frequencies() const {
  const std::int64_t dim = head_channels();
  const RopeScaling& s = rope_scaling;
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(dim);
    const float plain = 1.0f / static_cast<float>(std::pow(rope_theta, double{exponent}));
    if (s.rope_type == "default") {
      frequencies.push_back(plain);
      continue;
    }
    // Long waves are stretched; llama3 keeps short ones and blends those in between.
    double blend = 0;
    if (s.rope_type == "llama3") {
      const double turns = static_cast<double>(s.original_max_position_embeddings) *
                           static_cast<double>(plain) / (2 * std::numbers::pi);
      blend = std::clamp((turns - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor),
                         0.0, 1.0);
    }
    frequencies.push_back(
        static_cast<float>(static_cast<double>(plain) * ((1 - blend) / s.factor + blend)));
  }
  return frequencies;
}

}  // namespace shoal::nn
