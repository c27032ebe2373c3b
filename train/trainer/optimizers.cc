#include "shoal/train/trainer/optimizers.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

nn::AdamWOptions adam(const TrainingArguments& a) {
  return {.beta1 = a.adam_beta1,
          .beta2 = a.adam_beta2,
          .epsilon = a.adam_epsilon,
          .weight_decay = a.weight_decay};
}

struct Row {
  std::vector<const char*> names;  // the first is printed
  std::unique_ptr<nn::UpdateRule> (*make)(const TrainingArguments& a);
};

// To add a rule, add a row.
const std::vector<Row>& rows() {
  static const std::vector<Row> rows = {
      {{"adamw", "adamw_torch", "adamw_torch_fused", "adamw_apex_fused", "adamw_hf"},
       [](const TrainingArguments& a) { return nn::adamw(adam(a)); }},
      {{"sgd"},
       [](const TrainingArguments& a) {
         return nn::sgd({.momentum = a.sgd_momentum, .weight_decay = a.weight_decay});
       }},
      {{"lion", "lion_32bit"},
       [](const TrainingArguments& a) {
         return nn::lion(
             {.beta1 = a.adam_beta1, .beta2 = a.adam_beta2, .weight_decay = a.weight_decay});
       }},
      {{"adafactor"},
       [](const TrainingArguments& a) { return nn::adafactor({.weight_decay = a.weight_decay}); }},
      {{"lamb"}, [](const TrainingArguments& a) { return nn::lamb({.adam = adam(a)}); }},
  };
  return rows;
}

}  // namespace

std::vector<std::pair<const char*, std::string>> optimizer_words() {
  std::vector<std::pair<const char*, std::string>> words;
  for (const Row& row : rows())
    for (const char* const name : row.names) words.emplace_back(name, row.names.front());
  return words;
}

std::unique_ptr<nn::UpdateRule> make_rule(const TrainingArguments& arguments) {
  const auto row = std::ranges::find_if(
      rows(), [&](const Row& one) { return one.names.front() == arguments.optim; });
  SHOAL_CHECK(row != rows().end(), "there is no update rule '{}'", arguments.optim);
  return row->make(arguments);
}

}  // namespace shoal
