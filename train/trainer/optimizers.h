// The update rules that --optim names.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shoal/nn/optim/update_rule.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal {

// All accepted names, each paired with the first name of its rule.
std::vector<std::pair<const char*, std::string>> optimizer_words();
// The rule that `arguments` ask for.
std::unique_ptr<nn::UpdateRule> make_rule(const TrainingArguments& arguments);

}  // namespace shoal
