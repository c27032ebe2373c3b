#include "shoal/nn/models/model_type.h"

#include <algorithm>
#include <array>
#include <utility>

#include "shoal/nn/models/config_reader.h"
#include "shoal/nn/models/decoder/family.h"
#include "shoal/nn/models/encoder/family.h"
#include "shoal/nn/models/encoder_decoder/family.h"

namespace shoal::nn {
namespace {

struct FamilyPrefix {
  std::string_view class_prefix, model_type;
};
const std::vector<FamilyPrefix>& families() {
  static const std::vector<FamilyPrefix> all = [] {
    std::vector<FamilyPrefix> made;
    for (const DecoderFamily* family : decoder_families())
      made.push_back({family->class_prefix, family->model_type});
    for (const EncoderFamily* family : encoder_families())
      made.push_back({family->class_prefix, family->model_type});
    for (const EncoderDecoderFamily* family : encoder_decoder_families())
      made.push_back({family->class_prefix, family->model_type});
    return made;
  }();
  return all;
}
// A prefix does not suffice: BertGenerationEncoder is another family's.
constexpr std::array kEndings = {"Model",
                                 "LMHeadModel",
                                 "DoubleHeadsModel",
                                 "ForCausalLM",
                                 "ForConditionalGeneration",
                                 "ForMaskedLM",
                                 "ForMultipleChoice",
                                 "ForNextSentencePrediction",
                                 "ForPreTraining",
                                 "ForQuestionAnswering",
                                 "ForSequenceClassification",
                                 "ForTokenClassification"};

std::string_view family_of_class(std::string_view name) {
  for (const auto& [prefix, type] : families())
    if (name.starts_with(prefix) &&
        std::ranges::find(kEndings, name.substr(prefix.size())) != kEndings.end())
      return type;
  return {};
}

}  // namespace

std::string model_type_of(const nlohmann::json& config) {
  if (const nlohmann::json* type = find_field(config, "model_type"))
    return type->is_string() ? type->get<std::string>() : std::string();
  const nlohmann::json* classes = find_field(config, "architectures");
  if (classes == nullptr || !classes->is_array()) return {};
  std::string_view found;
  for (const nlohmann::json& name : *classes) {
    const std::string_view family =
        name.is_string() ? family_of_class(name.get_ref<const std::string&>()) : std::string_view();
    if (family.empty() || (!found.empty() && family != found)) return {};
    found = family;
  }
  return std::string(found);
}

const std::vector<std::string_view>& known_types() {
  static const std::vector<std::string_view> all = [] {
    std::vector<std::string_view> made;
    for (const FamilyPrefix& family : families()) made.push_back(family.model_type);
    return made;
  }();
  return all;
}

bool is_known_type(std::string_view model_type) {
  return std::ranges::find(families(), model_type, &FamilyPrefix::model_type) != families().end();
}

std::string model_type_of(const nlohmann::json& config, std::string_view source) {
  const ConfigReader read(config, source);
  std::string type = model_type_of(config);
  read.text("model_type", type);
  if (type.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} names no model_type", source),
                fmt::format("give --model_type (shoal train), or add model_type to the file: {}",
                            fmt::join(known_types(), ", ")));
  return type;
}

nlohmann::json with_model_type(nlohmann::json config, std::string_view source) {
  config["model_type"] = model_type_of(config, source);
  return config;
}

}  // namespace shoal::nn
