#include "shoal/nn/models/written_config.h"

#include <array>

#include <nlohmann/json.hpp>

#include "shoal/runtime/io/json.h"

namespace shoal::nn {

nlohmann::ordered_json written_config(const WrittenConfig& config,
                                      const nlohmann::ordered_json& before,
                                      const nlohmann::ordered_json& now) {
  nlohmann::ordered_json out =
      config.read.empty() ? now : parse_ordered_json(config.read, "config.json");
  for (const auto& [name, value] : now.items()) {
    const auto was = before.find(name);
    if (was != before.end() && *was == value) continue;
    out[name] = value;
    if (name == "id2label") out.erase("num_labels");  // num_labels would contradict it
  }
  for (const auto& [name, value] : before.items())
    if (!now.contains(name)) {
      out.erase(name);
      if (name == "id2label") out.erase("num_labels");
    }
  out["model_type"] = now["model_type"];
  out["architectures"] = {config.architecture};
  constexpr std::array kDtypes = {"dtype", "torch_dtype"};  // names in transformers 5 and 4
  bool has_dtype = false;
  for (const char* name : kDtypes)
    if (out.contains(name)) {
      out[name] = config.dtype;
      has_dtype = true;
    }
  if (!has_dtype) out["torch_dtype"] = config.dtype;  // both versions read this name
  return out;
}

nlohmann::json completed_config(nlohmann::json read, const nlohmann::json& known) {
  for (const auto& [name, value] : known.items()) {
    nlohmann::json& field = read[name];
    if (field.is_object() && value.is_object())
      field.update(value);
    else
      field = value;
  }
  return read;
}

}  // namespace shoal::nn
