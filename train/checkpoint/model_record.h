// Compares the model of a checkpoint with the run's, by config.json. Models may differ only in
// heads, activations or epsilons, which tensors do not show. A run that resumed from such a
// checkpoint would silently train another model.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

// Returns the fields of a config.json that the model knows, including defaults for missing ones;
// `path` names the file in messages.
using KnownFields =
    std::function<nlohmann::json(const nlohmann::json& config, std::string_view path)>;

// `configuration`: all known fields of the run's model (Task::configuration()); null: not known.
// `known` reads the checkpoint's config.json in the same way. Throws invalid_argument, on one line,
// with each field that differs and both values.
//
// `config_name`: the file's name in the checkpoint.
//
// Fields that only one side has are ignored, as are fields that do not affect computation (names,
// dtypes, initial values). Dropout may change: the function returns such fields as "resid_pdrop is
// 0.1 in .., and 0 here". A checkpoint without config.json is not compared.
std::vector<std::string> check_same_model(const std::string& checkpoint_directory,
                                          const nlohmann::json& configuration,
                                          const KnownFields& known,
                                          const std::string& config_name = "config.json");

}  // namespace shoal
