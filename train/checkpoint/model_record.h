// Which model a checkpoint is of: its config.json. Two models may differ in nothing that tensors
// show, in their heads, activations or epsilons, and a run that went on as the other would train
// something else without a word.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

// `configuration`: of the run's model, every field that it knows (Task::configuration()); null: not
// known. invalid_argument, in one line, with each field that the checkpoint's config.json has
// otherwise and both values. Passed over are fields that only one side has, and those that say
// nothing of what is computed (names, dtypes, what the weights begin with). Dropout may change:
// such fields are returned, "resid_pdrop is 0.1 in .., and 0 here". A checkpoint without
// config.json has nothing to be compared.
std::vector<std::string> check_same_model(const std::string& checkpoint_directory,
                                          const nlohmann::json& configuration);

}  // namespace shoal
