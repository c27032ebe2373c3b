#include "shoal/nn/models/gpt2/config.h"

#include <nlohmann/json.hpp>

#include "shoal/nn/models/config_reader.h"
#include "shoal/nn/models/written_config.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"

namespace shoal::nn {

Gpt2Config Gpt2Config::preset(std::string_view name) {
  Gpt2Config config;
  const auto size = [&](std::int64_t layers, std::int64_t width, std::int64_t heads) {
    config.n_layer = layers;
    config.n_embd = width;
    config.n_head = heads;
    return config;
  };
  if (name == "gpt2") return size(12, 768, 12);
  if (name == "gpt2-medium") return size(24, 1024, 16);
  if (name == "gpt2-large") return size(36, 1280, 20);
  if (name == "gpt2-xl") return size(48, 1600, 25);
  throw_error(ErrorCode::invalid_argument,
              "there is no GPT-2 preset '{}'; there are gpt2, gpt2-medium, gpt2-large and gpt2-xl",
              name);
}

Gpt2Config Gpt2Config::from_json(const nlohmann::json& object, std::string_view name) {
  const ConfigReader read(object, name);
  std::string type = "gpt2";
  read.text("model_type", type);
  if (type != "gpt2")
    read.fail(fmt::format("has model_type {}, where gpt2 is expected", shortened(type)));
  Gpt2Config config;
  read.integer("vocab_size", config.vocab_size);
  read.integer("n_positions", config.n_positions);
  read.integer("n_embd", config.n_embd);
  read.integer("n_layer", config.n_layer);
  read.integer("n_head", config.n_head);
  read.integer("n_inner", config.n_inner);
  read.text("activation_function", config.activation_function);
  read.number("resid_pdrop", config.resid_pdrop);
  read.number("embd_pdrop", config.embd_pdrop);
  read.number("attn_pdrop", config.attn_pdrop);
  read.number("layer_norm_epsilon", config.layer_norm_epsilon);
  read.number("initializer_range", config.initializer_range);
  read.boolean("scale_attn_weights", config.scale_attn_weights);
  read.boolean("scale_attn_by_inverse_layer_idx", config.scale_attn_by_inverse_layer_idx);
  read.boolean("tie_word_embeddings", config.tie_word_embeddings);
  read.optional_integer("bos_token_id", config.bos_token_id);
  read.first_integer("eos_token_id", config.eos_token_id);
  read.optional_integer("pad_token_id", config.pad_token_id);
  config.labels = DecoderLabels::read(read);
  // reorder_and_upcast_attn requests f32 scores, which Shoal always uses.
  bool upcast = false;
  read.boolean("reorder_and_upcast_attn", upcast);
  read.refuse_true("add_cross_attention");
  read.refuse_true("is_encoder_decoder");
  read.refuse_filled("quantization_config");
  read.refuse_filled("pruned_heads");
  try {
    config.check();
  } catch (const Error& error) {
    read.fail(fmt::format("does not describe a GPT-2: {}", error.message()));
  }
  config.source = object.dump();
  return config;
}

Gpt2Config Gpt2Config::from_file(const std::string& path) {
  return from_json(read_json_file(path), path);
}

nlohmann::ordered_json Gpt2Config::known_fields(DecoderHead head) const {
  const auto or_null = [](const std::optional<std::int64_t>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json out;
  out["activation_function"] = activation_function;
  out["attn_pdrop"] = attn_pdrop;
  out["bos_token_id"] = or_null(bos_token_id);
  out["embd_pdrop"] = embd_pdrop;
  out["eos_token_id"] = or_null(eos_token_id);
  out["initializer_range"] = initializer_range;
  out["layer_norm_epsilon"] = layer_norm_epsilon;
  out["model_type"] = "gpt2";
  out["n_ctx"] = n_positions;  // old name for old versions
  out["n_embd"] = n_embd;
  out["n_head"] = n_head;
  out["n_inner"] = n_inner > 0 ? nlohmann::ordered_json(n_inner) : nlohmann::ordered_json();
  out["n_layer"] = n_layer;
  out["n_positions"] = n_positions;
  if (pad_token_id) out["pad_token_id"] = *pad_token_id;
  out["reorder_and_upcast_attn"] = false;
  out["resid_pdrop"] = resid_pdrop;
  out["scale_attn_by_inverse_layer_idx"] = scale_attn_by_inverse_layer_idx;
  out["scale_attn_weights"] = scale_attn_weights;
  out["tie_word_embeddings"] = tie_word_embeddings;
  out["use_cache"] = true;
  out["vocab_size"] = vocab_size;
  labels.write(head, out);
  return out;
}

nlohmann::ordered_json Gpt2Config::to_json(std::string_view dtype, DecoderHead head) const {
  const nlohmann::ordered_json now = known_fields(head);
  return written_config(
      {.read = source,
       .architecture = head == DecoderHead::causal_lm ? std::string("GPT2LMHeadModel")
                                                      : fmt::format("GPT2{}", class_suffix(head)),
       .dtype = dtype},
      source.empty()
          ? now
          : from_json(parse_json(source, "config.json"), "config.json").known_fields(head),
      now);
}

void Gpt2Config::check() const {
  SHOAL_CHECK(
      vocab_size > 0 && n_positions > 0 && n_embd > 0 && n_layer >= 0 && n_head > 0 && n_inner >= 0,
      "vocab_size {}, n_positions {}, n_embd {}, n_layer {}, n_head {}, n_inner {}", vocab_size,
      n_positions, n_embd, n_layer, n_head, n_inner);
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;  // ids are i32
  SHOAL_CHECK(vocab_size < kLimit && n_positions < kLimit && n_embd <= kMostWidth &&
                  n_layer <= kMostLayers && inner() <= kMostWidth,
              "vocab_size {}, n_positions {}, n_embd {}, n_layer {} or n_inner {} is beyond reason",
              vocab_size, n_positions, n_embd, n_layer, n_inner);
  SHOAL_CHECK(n_embd % n_head == 0, "n_embd {} is not a multiple of n_head {}", n_embd, n_head);
  SHOAL_CHECK(activation_function == "gelu_new" || activation_function == "gelu" ||
                  activation_function == "gelu_pytorch_tanh",
              "activation_function '{}' is not supported; gelu_new, gelu and gelu_pytorch_tanh are",
              shortened(activation_function));
  for (const double probability : {resid_pdrop, embd_pdrop, attn_pdrop})
    SHOAL_CHECK(probability >= 0 && probability < 1, "a dropout probability {} is not in [0, 1)",
                probability);
  SHOAL_CHECK(layer_norm_epsilon > 0 && initializer_range >= 0,
              "layer_norm_epsilon {}, initializer_range {}", layer_norm_epsilon, initializer_range);
  labels.check();
  check_parameters(trunk_parameters());
}

double Gpt2Config::trunk_parameters() const {
  const auto c = static_cast<double>(n_embd), f = static_cast<double>(inner());
  return static_cast<double>(vocab_size + n_positions) * c +
         static_cast<double>(n_layer) * (4 * c + 2 * f) * c;
}

std::int64_t Gpt2Config::parameter_count() const {
  const std::int64_t c = n_embd, f = inner();
  const std::int64_t block = 4 * c + (c + 1) * 3 * c + (c + 1) * c + (c + 1) * f + (f + 1) * c;
  return (tie_word_embeddings ? 1 : 2) * vocab_size * c + n_positions * c + n_layer * block + 2 * c;
}

}  // namespace shoal::nn
