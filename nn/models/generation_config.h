// generation_config.json of a model directory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace shoal::nn {

class GenerationConfig {
 public:
  // Reads the directory's file, if any; text() then returns it unchanged. Throws on errors in it,
  // which would spread.
  void keep(const std::string& directory);
  // Replaces a token id of the file and of `config`, for a run that chooses it.
  void set(const std::string& name, std::int64_t id) { set_[name] = id; }
  // The text of the file with the ids of set(), or without one of a file with the token ids of
  // `config`.
  std::string text(const nlohmann::ordered_json& config) const;
  // A token id ("forced_bos_token_id") of the file or, without one, of `config`.
  std::optional<std::int64_t> id(const std::string& name,
                                 const nlohmann::ordered_json& config) const;

 private:
  std::string read_;  // empty: none
  std::map<std::string, std::int64_t> set_;
};

}  // namespace shoal::nn
