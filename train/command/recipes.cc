#include "shoal/train/command/recipes.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"

namespace shoal::command {

const Recipe& find_recipe(const std::string& name) {
  const auto all = recipes();
  if (const auto found = std::ranges::find(all, name, &Recipe::name); found != all.end())
    return *found;
  std::vector<std::string> names;
  for (const Recipe& recipe : all) names.emplace_back(recipe.name);
  throw Error(ErrorCode::not_found,
              fmt::format("there is neither a file nor a recipe '{}'", shortened(name)),
              did_you_mean(name, names, "`shoal help recipes` lists the recipes"));
}

void add_file_or_recipe(OptionSet& options, const std::string& file_or_recipe) {
  const bool names_file = file_or_recipe.ends_with(".json") ||
                          file_or_recipe.find('/') != std::string::npos ||
                          path_exists(file_or_recipe);
  if (names_file) return options.add_file(file_or_recipe);
  try {
    options.add_json(parse_json(find_recipe(file_or_recipe).json, file_or_recipe),
                     "recipe " + file_or_recipe);
  } catch (const Error& error) {
    options.add_problem(error.what());
  }
}

}  // namespace shoal::command
