#include "shoal/nn/models/decoder/config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/config_reader.h"
#include "shoal/nn/models/decoder/family.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/nn/models/written_config.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"

namespace shoal::nn {
namespace {

bool is_rotary(const DecoderFamily& family) {
  return family.attention == DecoderFamily::Attention::grouped;
}

// "n_embd": the family's name of a member; empty if config.json does not have it.
template <typename Value>
std::string_view name_of(const DecoderFamily& family, Value DecoderConfig::* member) {
  for (const ConfigField& field : family.fields)
    if (const auto* const known = std::get_if<Value DecoderConfig::*>(&field.member);
        known != nullptr && *known == member)
      return field.name;
  return {};
}

// rope_parameters or rope_scaling. If layers with windows have a base of their own, there may be an
// object for them and one for the others.
void read_positions(const nlohmann::json& object, const std::string& name,
                    const DecoderFamily& family, DecoderConfig& config) {
  if (name_of(family, &DecoderConfig::rope_local_theta).empty())
    return config.rope_scaling.read(object, name, config.rope_theta);
  const ConfigReader read(object, name);
  const auto* const local = read.find("sliding_attention");
  const auto* const global = read.find("full_attention");
  if (local != nullptr) {
    RopeScaling plain;
    plain.read(*local, name + ", sliding_attention", config.rope_local_theta);
    if (plain.rope_type != "default")
      read.fail("scales the positions of sliding_attention, which is not supported");
  }
  if (global != nullptr || local == nullptr)
    config.rope_scaling.read(global ? *global : object, name, config.rope_theta);
}

void check_sizes_of(const DecoderConfig& config, const DecoderFamily& family) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;  // ids are i32
  struct Size {
    std::int64_t DecoderConfig::* member;
    std::int64_t least, most;
  };
  const std::int64_t inner = family.defaults.intermediate_size == 0 ? 0 : 1;
  for (const Size& size : {Size{&DecoderConfig::vocab_size, 1, kLimit - 1},
                           {&DecoderConfig::hidden_size, 1, kMostWidth},
                           {&DecoderConfig::intermediate_size, inner, kMostWidth},
                           {&DecoderConfig::num_hidden_layers, 0, kMostLayers},
                           {&DecoderConfig::num_attention_heads, 1, kMostWidth},
                           {&DecoderConfig::max_position_embeddings, 1, kLimit - 1}})
    SHOAL_CHECK(config.*size.member >= size.least && config.*size.member <= size.most,
                "{} {} is beyond reason", name_of(family, size.member), config.*size.member);
  const auto heads = name_of(family, &DecoderConfig::num_attention_heads);
  SHOAL_CHECK(
      config.num_key_value_heads >= 0 && config.num_attention_heads % config.key_heads() == 0,
      "{} {} is not a multiple of num_key_value_heads {}", heads, config.num_attention_heads,
      config.num_key_value_heads);
  SHOAL_CHECK(config.head_dim > 0 ||
                  (config.head_dim == 0 && config.hidden_size % config.num_attention_heads == 0),
              "{} {} is not a multiple of {} {}, and head_dim is {}",
              name_of(family, &DecoderConfig::hidden_size), config.hidden_size, heads,
              config.num_attention_heads, config.head_dim);
  check_parameters(config.trunk_parameters());
  SHOAL_CHECK(config.head_channels() <= kMostHeadWidth, "heads of {} channels are beyond reason",
              config.head_channels());
}

void check_windows(const DecoderConfig& config) {
  const bool has_window = config.sliding_window && config.use_sliding_window;
  SHOAL_CHECK(!has_window || *config.sliding_window > 0, "sliding_window {} is not above 0",
              *config.sliding_window);
  SHOAL_CHECK(has_window || config.sliding_window_pattern == 0,
              "sliding_window_pattern {} without a window; set sliding_window",
              config.sliding_window_pattern);
  const std::vector<std::string>& types = config.layer_types;
  SHOAL_CHECK(types.empty() || std::ssize(types) == config.num_hidden_layers,
              "layer_types has {} entries for {} layers", types.size(), config.num_hidden_layers);
  for (const std::string& type : types) {
    const bool slides = type == "sliding_attention";
    SHOAL_CHECK(slides || type == "full_attention",
                "layer type '{}' is not supported; full_attention and sliding_attention are",
                shortened(type));
    SHOAL_CHECK(!slides || has_window,
                "layer_types names sliding_attention without a window; set "
                "sliding_window, and use_sliding_window if there is one");
  }
}

}  // namespace

DecoderConfig DecoderConfig::of(std::string_view model_type) {
  return decoder_family(model_type, "the configuration").defaults;
}

DecoderConfig DecoderConfig::from_json(const nlohmann::json& object, std::string_view name) {
  const ConfigReader read(object, name);
  const DecoderFamily& family = decoder_family(model_type_of(object, name), name);
  DecoderConfig config = family.defaults;
  read_fields(read, family.fields, config);
  // A family's own field of this name is not the dropout of labels.
  config.labels = DecoderLabels::read(
      read, name_of(family, &DecoderConfig::hidden_dropout) != "hidden_dropout");
  if (is_rotary(family)) {
    for (const char* key : {"rope_parameters", "rope_scaling"})
      if (const auto* found = read.find(key))
        read_positions(*found, fmt::format("{}, {}", name, key), family, config);
    if (!name_of(family, &DecoderConfig::rotary_fraction).empty() &&
        config.rope_scaling.rope_type != "proportional")
      config.rotary_fraction =
          std::exchange(config.rope_scaling.partial_rotary_factor, std::nullopt)
              .value_or(config.rotary_fraction);
    // Outside the object it has priority in transformers.
    if (config.rope_scaling.rope_type != "default")
      read.optional_integer("original_max_position_embeddings",
                            config.rope_scaling.original_max_position_embeddings);
  }
  bool token_bias = true;
  read.boolean("token_classification_bias", token_bias);
  if (!token_bias) read.fail("has token_classification_bias: false, which is not supported");
  read.refuse_true("is_encoder_decoder");
  read.refuse_true("add_cross_attention");
  read.refuse_true("use_bidirectional_attention");
  read.refuse_filled("quantization_config");
  read.refuse_filled("pruned_heads");
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"})
    if (std::ranges::find(family.fields, cap, &ConfigField::name) == family.fields.end())
      read.refuse_filled(cap);
  try {
    config.check();
  } catch (const Error& error) {
    read.fail(fmt::format("does not describe a {}: {}", family.title, error.message()));
  }
  config.source = object.dump();
  return config;
}

DecoderConfig DecoderConfig::from_file(const std::string& path) {
  return from_json(read_json_file(path), path);
}

nlohmann::ordered_json DecoderConfig::known_fields(DecoderHead head) const {
  const DecoderFamily& family = this->family();
  nlohmann::json known = family.constants;
  known["model_type"] = model_type;
  DecoderConfig derived = *this;
  derived.head_dim = head_channels();
  derived.num_key_value_heads = key_heads();
  write_fields(family.fields, derived, known);
  if (intermediate_size == 0) known[name_of(family, &DecoderConfig::intermediate_size)] = nullptr;
  // Written as in transformers 4; version 5 reads it, too.
  if (is_rotary(family)) known["rope_scaling"] = rope_scaling.to_json();
  nlohmann::ordered_json ordered(known);
  labels.write(head, ordered);
  return ordered;
}

nlohmann::ordered_json DecoderConfig::to_json(std::string_view dtype, DecoderHead head) const {
  const DecoderFamily& family = this->family();
  const nlohmann::ordered_json now = known_fields(head);
  const nlohmann::ordered_json before =
      source.empty()
          ? now
          : from_json(parse_json(source, "config.json"), "config.json").known_fields(head);
  nlohmann::ordered_json out = written_config(
      {.read = source,
       .architecture =
           head == DecoderHead::causal_lm && !family.language_model.empty()
               ? std::string(family.language_model)
               : fmt::format("{}{}", family.class_prefix,
                             head == DecoderHead::causal_lm ? "ForCausalLM" : class_suffix(head)),
       .dtype = dtype},
      before, now);
  if (!is_rotary(family)) return out;
  std::vector<std::string_view> rotary = {name_of(family, &DecoderConfig::rope_theta),
                                          "rope_scaling"};
  for (const auto member : {&DecoderConfig::rotary_fraction, &DecoderConfig::rope_local_theta})
    if (const auto field = name_of(family, member); !field.empty()) rotary.push_back(field);
  if (std::ranges::any_of(rotary, [&](auto name) { return before[name] != now[name]; })) {
    out.erase("rope_parameters");
    for (const std::string_view name : rotary) out[name] = now[name];
  }
  return out;
}

const DecoderFamily& DecoderConfig::family() const {
  return decoder_family(model_type, "the configuration");
}

void DecoderConfig::check() const {
  const DecoderFamily& family = this->family();
  check_sizes_of(*this, family);
  check_windows(*this);
  const auto& known = family.activations;
  SHOAL_CHECK(std::ranges::find(known, hidden_act) != known.end(),
              "{} '{}' is not supported; {} {}", name_of(family, &DecoderConfig::hidden_act),
              shortened(hidden_act), fmt::join(known, ", "), known.size() == 1 ? "is" : "are");
  for (const auto member : {&DecoderConfig::embedding_dropout, &DecoderConfig::hidden_dropout,
                            &DecoderConfig::attention_dropout})
    SHOAL_CHECK(this->*member >= 0 && this->*member < 1, "{} {} is not in [0, 1)",
                name_of(family, member), this->*member);
  labels.check();
  SHOAL_CHECK(norm_eps > 0 && initializer_range >= 0 && rope_theta > 0,
              "{} {}, initializer_range {}, rope_theta {}",
              name_of(family, &DecoderConfig::norm_eps), norm_eps, initializer_range, rope_theta);
  for (const auto member :
       {&DecoderConfig::query_pre_attn_scalar, &DecoderConfig::sliding_window_pattern})
    SHOAL_CHECK(name_of(family, member).empty() || this->*member > 0, "{} {} is not above 0",
                name_of(family, member), this->*member);
  for (const auto member : {&DecoderConfig::attention_soft_cap, &DecoderConfig::logit_soft_cap})
    SHOAL_CHECK((this->*member).value_or(1) > 0,
                "{} {} is not above 0; give a positive number, or null for none",
                name_of(family, member), (this->*member).value_or(0));
  if (!is_rotary(family)) return;
  SHOAL_CHECK(rope_local_theta > 0 || name_of(family, &DecoderConfig::rope_local_theta).empty(),
              "{} {} is not above 0", name_of(family, &DecoderConfig::rope_local_theta),
              rope_local_theta);
  SHOAL_CHECK(rotary_fraction > 0 && rotary_fraction <= 1, "{} {} is not in (0, 1]",
              name_of(family, &DecoderConfig::rotary_fraction), rotary_fraction);
  SHOAL_CHECK(rotary_channels() > 0 && rotary_channels() % 2 == 0,
              "{} of a head's {} channels turn: rotary positions turn pairs", rotary_channels(),
              head_channels());
  rope_scaling.check(rotary_channels());
}

bool DecoderConfig::slides(std::int64_t layer) const {
  if (!sliding_window || !use_sliding_window) return false;
  if (!layer_types.empty())
    return layer_types[static_cast<std::size_t>(layer)] == "sliding_attention";
  if (sliding_window_pattern > 0) return (layer + 1) % sliding_window_pattern != 0;
  return layer >= max_window_layers;
}

std::int64_t DecoderConfig::window(std::int64_t layer) const {
  // A window of all positions changes nothing, and fewer kernels know windows.
  return slides(layer) && *sliding_window < max_position_embeddings ? *sliding_window : 0;
}

float DecoderConfig::attention_scale(std::int64_t layer) const {
  double scale = 1;
  if (scale_attn_weights) scale /= std::sqrt(static_cast<double>(head_channels()));
  if (scale_attn_by_inverse_layer_idx) scale /= static_cast<double>(layer + 1);
  return static_cast<float>(scale);
}

double DecoderConfig::trunk_parameters() const {
  const DecoderFamily& family = this->family();
  const auto c = static_cast<double>(hidden_size), f = static_cast<double>(inner());
  const auto rows =
      static_cast<double>(vocab_size + (family.positions.empty() ? 0 : max_position_embeddings));
  const auto heads =
      static_cast<double>(head_channels()) * static_cast<double>(num_attention_heads + key_heads());
  return rows * c + static_cast<double>(num_hidden_layers) *
                        (2 * heads + (family.mlp == DecoderFamily::Mlp::gated ? 3 : 2) * f) * c;
}

void spell_plainly(nlohmann::json& config) {
  const nlohmann::json* parameters = find_field(config, "rope_parameters");
  if (parameters == nullptr) return;
  const nlohmann::json* global = find_field(*parameters, "full_attention");
  nlohmann::json scaling = global ? *global : *parameters;
  scaling.erase("sliding_attention");
  scaling.erase("rope_theta");
  config["rope_scaling"] = std::move(scaling);
  config.erase("rope_parameters");
}

}  // namespace shoal::nn
