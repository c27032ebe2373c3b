#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/adapter.h"
#include "shoal/nn/models/encoder_decoder/base.h"
#include "shoal/runtime/io/files.h"

namespace shoal::nn {
namespace {

constexpr std::array kTables = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};
constexpr const char* kHead = "lm_head.weight";

// The trunk's names below the heads of the family's classes.
std::vector<std::string_view> bases_of(const EncoderDecoderFamily& family) {
  std::vector<std::string_view> bases = {family.base};
  for (const StackHead& place : family.heads)
    if (std::ranges::count(bases, place.base) == 0) bases.push_back(place.base);
  return bases;
}

// The name without the base of one of the family's classes.
std::string_view bare(const EncoderDecoderFamily& family, std::string_view name) {
  for (const std::string_view base : bases_of(family))
    if (!base.empty() && name.starts_with(base) && name.size() > base.size() &&
        name[base.size()] == '.')
      return name.substr(base.size() + 1);
  return name;
}

bool is_trunk(const EncoderDecoderFamily& family, std::string_view name) {
  name = bare(family, name);
  return name.starts_with("shared.") || name.starts_with("encoder.") ||
         name.starts_with("decoder.");
}

std::vector<std::string> candidates_of(const EncoderDecoderConfig& config,
                                       const std::string& parameter) {
  const EncoderDecoderFamily& family = config.family();
  std::vector<std::string> names{parameter};
  if (!is_trunk(family, parameter)) {
    // transformers 5 ties the heads of new models of T5 1.1.
    if (parameter == kHead) names.emplace_back("shared.weight");
    return names;
  }
  // Files of a model without a head have no base.
  const std::vector<std::string_view> bases = bases_of(family);
  const auto add = [&](std::string_view name) {
    names.emplace_back(name);
    for (const std::string_view base : bases)
      if (!base.empty()) names.push_back(fmt::format("{}.{}", base, name));
  };
  const std::string_view name = bare(family, parameter);
  add(name);
  if (name == "shared.weight") {
    // A table with several readers may be stored under any reader's name.
    for (const char* table : kTables) add(table);
    if (config.tie_word_embeddings) names.emplace_back(kHead);
  }
  return names;
}

// Of a language model's file, a tied head repeats the table.
bool is_ignored_tensor(const EncoderDecoderConfig& config, std::string_view tensor) {
  const std::string_view name = bare(config.family(), tensor);
  return std::ranges::count(kTables, name) > 0 || name == "encoder.version" ||
         name == "decoder.version" ||
         name.ends_with("EncDecAttention.relative_attention_bias.weight") ||
         (name == kHead && config.tie_word_embeddings);
}

}  // namespace

LoadReport EncoderDecoderBase::load(const std::string& directory, const AssignParameter& assign) {
  keep_generation_config(directory);
  const EncoderDecoderFamily& family = config_.family();
  const auto is_bias = [&](const std::string& parameter) {
    return parameter == family.logits_bias;
  };
  const auto may_be_new = [&, this](const std::string& parameter) {
    return is_bias(parameter) ||
           (head_kind() != DecoderHead::causal_lm && !is_trunk(family, parameter));
  };
  LoadReport report = load_weights(
      directory, *this,
      {.candidates =
           [this](const std::string& parameter) { return candidates_of(config_, parameter); },
       .ignored =
           [&, this](std::string_view tensor) {
             return is_ignored_tensor(config_, tensor) ||
                    (!decoder && bare(family, tensor).starts_with("decoder."));
           },
       .may_be_new = may_be_new},
      assign);
  std::erase_if(report.missing, is_bias);  // zeros, which change nothing
  return report;
}

void EncoderDecoderBase::keep_generation_config(const std::string& directory) {
  if (head_kind() == DecoderHead::causal_lm) generation_.keep(directory);
}

std::vector<std::string> EncoderDecoderBase::save_config(const std::string& directory,
                                                         DType dtype) const {
  const nlohmann::ordered_json config = config_.to_json(torch_name(dtype), head_kind());
  const std::string name = config_name(*this);
  write_file_atomically(fmt::format("{}/{}", directory, name), config.dump(2) + "\n");
  if (head_kind() != DecoderHead::causal_lm) return {name};
  write_file_atomically(directory + "/generation_config.json", generation_.text(config));
  return {name, "generation_config.json"};
}

}  // namespace shoal::nn
