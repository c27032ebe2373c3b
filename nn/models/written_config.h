// A saved config.json: the file that was read, with changes applied. Fields unknown to Shoal, lists
// and absent fields stay as they were, as transformers' save_pretrained() keeps them.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace shoal::nn {

struct WrittenConfig {
  std::string_view read;          // text of the config.json that was read; empty: none
  std::string_view architecture;  // class of the saved model: "GPT2LMHeadModel"
  std::string_view dtype;         // dtype of the saved tensors: "float32"
};
// `before` and `now`: the known fields as they were read and as they are. Fields that differ are
// written. `architectures`, `model_type` and the dtype (under the file's name for it) are always
// written.
nlohmann::ordered_json written_config(const WrittenConfig& config,
                                      const nlohmann::ordered_json& before,
                                      const nlohmann::ordered_json& now);

// `read` with every field of `known` added; overrides may name these fields.
nlohmann::json completed_config(nlohmann::json read, const nlohmann::json& known);

}  // namespace shoal::nn
