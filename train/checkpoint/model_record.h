// Which model a checkpoint is of: its config.json. Two models may differ in nothing that tensors
// show, in their heads, activations or epsilons, and a run that went on as the other would train
// something else without a word.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

// A config.json as the fields that the model knows, with those that the file leaves to their
// defaults; `path` names it in messages.
using KnownFields =
    std::function<nlohmann::json(const nlohmann::json& config, std::string_view path)>;

// `configuration`: of the run's model, every field that it knows (Task::configuration()); null: not
// known. `known`: reads the checkpoint's in the same way. invalid_argument, in one line, with each
// field that the checkpoint's config.json has otherwise and both values. Passed over are fields
// that only one side has, and those that say nothing of what is computed (names, dtypes, what the
// weights begin with). Dropout may change: such fields are returned, "resid_pdrop is 0.1 in .., and
// 0 here". A checkpoint without config.json has nothing to be compared.
std::vector<std::string> check_same_model(const std::string& checkpoint_directory,
                                          const nlohmann::json& configuration,
                                          const KnownFields& known);

}  // namespace shoal
