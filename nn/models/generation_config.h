// generation_config.json of a model directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace shoal::nn {

class GenerationConfig {
 public:
  // Reads the directory's file, if any; text() then returns it unchanged. Throws on errors in it,
  // which would spread.
  void keep(const std::string& directory);
  // The text of the file, or without one of a file with the token ids of `config`, the config.json.
  std::string text(const nlohmann::ordered_json& config) const;
  // A token id ("forced_bos_token_id") of the file or, without one, of `config`.
  std::optional<std::int64_t> id(const std::string& name,
                                 const nlohmann::ordered_json& config) const;

 private:
  std::string read_;  // empty: none
};

}  // namespace shoal::nn
