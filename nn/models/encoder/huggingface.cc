#include "shoal/nn/models/encoder/huggingface.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/adapter.h"
#include "shoal/runtime/io/files.h"

namespace shoal::nn {
namespace {

// For each name that ends in `from`, adds the name with `to` instead.
void add_ending(std::vector<std::string>& names, std::string_view from, std::string_view to) {
  for (std::size_t i = names.size(); i-- > 0;)
    if (names[i].ends_with(from))
      names.push_back(names[i].substr(0, names[i].size() - from.size()) + std::string(to));
}

// Names of a tied decoder's weight.
std::vector<std::string> decoder_names(const EncoderFamily& family) {
  return {family.lm_head + ".weight", family.lm_head + ".decoder.weight"};
}

// With an untied decoder, transformers uses the alias and ignores the other name, so the alias
// comes first.
std::vector<std::string> candidates_of(const EncoderFamily& family, bool tied,
                                       const std::string& parameter) {
  std::vector<std::string> names{parameter};
  for (const auto& [name, alias] : family.aliases)
    if (name == parameter) names.insert(tied ? names.end() : names.begin(), alias);
  if (const std::string prefix = family.base + "."; parameter.starts_with(prefix))
    names.push_back(parameter.substr(prefix.size()));
  // Some files store a tied table only as the decoder's weight.
  if (tied && parameter == fmt::format("{}.{}.weight", family.base, family.words))
    for (const std::string& name : decoder_names(family)) names.push_back(name);
  add_ending(names, "LayerNorm.weight", "LayerNorm.gamma");
  add_ending(names, "LayerNorm.bias", "LayerNorm.beta");
  return names;
}

// Buffers of older versions and, in a language model's head, copies of tied tensors.
bool is_ignored(const Encoder& model, std::string_view tensor) {
  if (tensor.ends_with("embeddings.position_ids") || tensor.ends_with("embeddings.token_type_ids"))
    return true;
  if (model.task() != EncoderTask::masked_lm) return false;
  const EncoderFamily& family = encoder_family(model.config().model_type);
  for (const auto& [name, alias] : family.aliases)
    if (tensor == name || tensor == alias) return true;
  return model.config().tie_word_embeddings &&
         std::ranges::count(decoder_names(family), tensor) > 0;
}

// True for embeddings and layers. A directory without them holds another model.
bool is_base(const EncoderFamily& family, const std::string& parameter) {
  const std::string layer = family.layer(0, 0);
  const std::string layers = layer.substr(0, layer.find('.') + 1);
  return parameter.starts_with(family.base + ".embeddings") ||
         parameter.starts_with(family.base + "." + layers) ||
         (!family.final_norm.empty() &&
          parameter.starts_with(family.base + "." + family.final_norm));
}

}  // namespace

LoadReport load_encoder_weights(const std::string& directory, Encoder& model,
                                const AssignParameter& assign) {
  const EncoderFamily& family = encoder_family(model.config().model_type);
  LoadReport report = load_weights(
      directory, model,
      {.candidates =
           [&family, tied = model.config().tie_word_embeddings](const std::string& parameter) {
             return candidates_of(family, tied, parameter);
           },
       .ignored = [&model](std::string_view tensor) { return is_ignored(model, tensor); },
       .may_be_new =
           [&family](const std::string& parameter) { return !is_base(family, parameter); }},
      assign);
  // transformers reports both names.
  for (const auto& [name, alias] : family.aliases)
    if (std::ranges::count(report.missing, name) > 0) report.missing.push_back(alias);
  return report;
}

std::vector<std::string> save_encoder_config(const std::string& directory, const Encoder& model,
                                             DType dtype) {
  const std::string name = config_name(model);
  write_file_atomically(directory + "/" + name,
                        model.config().to_json(model.task(), torch_name(dtype)).dump(2) + "\n");
  return {name};
}

std::vector<std::string> save_encoder(const std::string& directory, const Encoder& model,
                                      const ParameterValue& value, std::int64_t max_shard_bytes) {
  const DType dtype = saved_dtype(model, value);
  std::vector<std::string> names = save_encoder_config(directory, model, dtype);
  const EncoderConfig& config = model.config();
  WeightCopies copies;
  if (model.task() == EncoderTask::masked_lm && !config.tie_word_embeddings)
    for (const auto& [name, alias] : encoder_family(config.model_type).aliases)
      copies.emplace_back(alias, name);
  for (std::string& name : save_weights(directory, model, value, max_shard_bytes, copies))
    names.push_back(std::move(name));
  return names;
}

}  // namespace shoal::nn
