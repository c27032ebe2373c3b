#include "shoal/nn/models/generation_config.h"

#include <array>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/config_reader.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/ordered_fields.h"

namespace shoal::nn {
namespace {

constexpr std::array kIds = {"bos_token_id",        "eos_token_id",
                             "pad_token_id",        "decoder_start_token_id",
                             "forced_bos_token_id", "forced_eos_token_id"};

}  // namespace

void GenerationConfig::keep(const std::string& directory) {
  const std::string path = directory + "/generation_config.json";
  if (!path_exists(path)) return;
  read_ = read_text_file(path);
  const nlohmann::json config = parse_json(read_, path);
  const ConfigReader read(config, path);
  std::optional<std::int64_t> id;
  for (const char* name : kIds) read.first_integer(name, id);
}

std::string GenerationConfig::text(const nlohmann::ordered_json& config) const {
  if (!read_.empty() && set_.empty()) return read_;
  nlohmann::ordered_json out{{"_from_model_config", true}};
  if (!read_.empty())
    out = parse_ordered_json(read_, "generation_config.json");
  else
    for (const char* name : kIds)
      if (const auto id = config.find(name); id != config.end() && !id->is_null()) out[name] = *id;
  OrderedFields fields(std::move(out));
  for (const auto& [name, id] : set_) fields[name] = id;
  return std::move(fields).json().dump(2) + "\n";
}

std::optional<std::int64_t> GenerationConfig::id(const std::string& name,
                                                 const nlohmann::ordered_json& config) const {
  if (const auto chosen = set_.find(name); chosen != set_.end()) return chosen->second;
  std::optional<std::int64_t> found;
  const nlohmann::json fields =
      read_.empty() ? nlohmann::json(config) : parse_json(read_, "generation_config.json");
  ConfigReader(fields, "generation_config.json").first_integer(name, found);
  return found;
}

}  // namespace shoal::nn
