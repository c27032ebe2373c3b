// A config.json as it is saved: the one that was read, with what has changed since laid over it.
// Fields that Shoal does not know, lists and absent fields stay as they were, as transformers'
// save_pretrained() keeps them.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace shoal::nn {

struct WrittenConfig {
  std::string_view read;  // the text of the config.json that was read; empty: there was none
  std::string_view architecture;  // the class of the saved model: "GPT2LMHeadModel"
  std::string_view dtype;         // of the saved tensors: "float32"
};
// `before`: the fields that the model knows, as they were read; `now`: as they are. A field that
// differs between the two is written. `architectures`, the dtype (under the name that the file has
// for it) and `model_type` always are.
nlohmann::ordered_json written_config(const WrittenConfig& config,
                                      const nlohmann::ordered_json& before,
                                      const nlohmann::ordered_json& now);

// `read` with every field of `known` in it: the fields that overrides may name.
nlohmann::json completed_config(nlohmann::json read, const nlohmann::json& known);

}  // namespace shoal::nn
