#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/adapter.h"
#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/runtime/io/files.h"

namespace shoal::nn {
namespace {

constexpr std::array kTables = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};
constexpr const char* kHead = "lm_head.weight";

// The name below the family's base, which files of a model without a head lack.
std::string_view bare(const EncoderDecoderFamily& family, std::string_view name) {
  const std::size_t base = family.base.size();
  if (base > 0 && name.starts_with(family.base) && name.size() > base && name[base] == '.')
    name.remove_prefix(base + 1);
  return name;
}

std::vector<std::string> candidates_of(const EncoderDecoderConfig& config,
                                       const std::string& parameter) {
  const EncoderDecoderFamily& family = config.family();
  const std::string name(bare(family, parameter));
  std::vector<std::string> names{parameter};
  if (name != parameter) names.push_back(name);
  if (name == "shared.weight") {
    // A table with several readers may be stored under any reader's name.
    for (const char* table : kTables) {
      if (!family.base.empty()) names.push_back(fmt::format("{}.{}", family.base, table));
      names.emplace_back(table);
    }
    if (config.tie_word_embeddings) names.emplace_back(kHead);
  }
  // transformers 5 ties the heads of new models of T5 1.1.
  if (name == kHead) names.emplace_back("shared.weight");
  return names;
}

bool is_ignored_tensor(const EncoderDecoderConfig& config, std::string_view tensor) {
  const std::string_view name = bare(config.family(), tensor);
  return std::ranges::count(kTables, name) > 0 || name == "encoder.version" ||
         name == "decoder.version" ||
         name.ends_with("EncDecAttention.relative_attention_bias.weight") ||
         (name == kHead && config.tie_word_embeddings);
}

}  // namespace

LoadReport EncoderDecoder::load(const std::string& directory, const AssignParameter& assign) {
  generation_.keep(directory);
  const auto is_bias = [this](const std::string& parameter) {
    return parameter == config_.family().logits_bias;
  };
  LoadReport report = load_weights(
      directory, *this,
      {.candidates =
           [this](const std::string& parameter) { return candidates_of(config_, parameter); },
       .ignored = [this](std::string_view tensor) { return is_ignored_tensor(config_, tensor); },
       .may_be_new = is_bias},
      assign);
  std::erase_if(report.missing, is_bias);  // zeros, which change nothing
  return report;
}

std::vector<std::string> EncoderDecoder::save_config(const std::string& directory,
                                                     DType dtype) const {
  const nlohmann::ordered_json config = config_.to_json(torch_name(dtype));
  const std::string name = config_name(*this);
  write_file_atomically(fmt::format("{}/{}", directory, name), config.dump(2) + "\n");
  write_file_atomically(directory + "/generation_config.json", generation_.text(config));
  return {name, "generation_config.json"};
}

}  // namespace shoal::nn
