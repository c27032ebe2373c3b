#include "shoal/nn/models/gpt2/huggingface.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"

namespace shoal::nn {
namespace {

constexpr std::string_view kPrefix = "transformer.";

std::string without_prefix(std::string_view name) {
  return std::string(name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name);
}

// Causal-mask buffers of older versions: h.N.attn.bias, h.N.attn.masked_bias.
bool is_mask_buffer(std::string_view bare) {
  if (!bare.starts_with("h.")) return false;
  const std::string_view rest = bare.substr(2);
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  const std::string_view tail = rest.substr(digits);
  return digits > 0 && (tail == ".attn.bias" || tail == ".attn.masked_bias");
}

void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  write_file_atomically(path, json.dump(2) + "\n");
}

nlohmann::ordered_json generation_config(const Gpt2Config& config) {
  nlohmann::ordered_json json;
  json["_from_model_config"] = true;
  if (config.bos_token_id) json["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_id) json["eos_token_id"] = *config.eos_token_id;
  if (config.pad_token_id) json["pad_token_id"] = *config.pad_token_id;
  return json;
}

WeightNames names_of(bool tied) {
  return {.candidates =
              [](const std::string& parameter) {
                const std::string bare = without_prefix(parameter);
                return std::vector<std::string>{std::string(kPrefix) + bare, bare};
              },
          .ignored =
              [tied](std::string_view tensor) {
                const std::string bare = without_prefix(tensor);
                return is_mask_buffer(bare) || (tied && bare == "lm_head.weight");
              },
          .may_be_new = {}};
}

}  // namespace

LoadReport Gpt2::load(const std::string& directory, const AssignParameter& assign) {
  return load_gpt2_weights(directory, *this, assign);
}

std::vector<std::string> Gpt2::save_config(const std::string& directory, DType dtype) const {
  return save_gpt2_config(directory, config_, dtype);
}

LoadReport load_gpt2_weights(const std::string& directory, Gpt2& model,
                             const AssignParameter& assign) {
  return load_weights(directory, model, names_of(model.config().tie_word_embeddings), assign);
}

std::vector<std::string> save_gpt2_config(const std::string& directory, const Gpt2Config& config,
                                          DType dtype) {
  write_json(directory + "/config.json", config.to_json(torch_name(dtype)));
  write_json(directory + "/generation_config.json", generation_config(config));
  return {"config.json", "generation_config.json"};
}

std::vector<std::string> save_gpt2(const std::string& directory, const Gpt2& model,
                                   const ParameterValue& value, std::int64_t max_shard_bytes) {
  const DType dtype = value(*model.parameters().front()).dtype;
  std::vector<std::string> names = save_gpt2_config(directory, model.config(), dtype);
  for (std::string& name : save_weights(directory, model, value, max_shard_bytes))
    names.push_back(std::move(name));
  return names;
}

}  // namespace shoal::nn
