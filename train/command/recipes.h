// Option files for common jobs, which are built in: those of examples and of examples/recipes.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "shoal/runtime/config/options.h"

namespace shoal::command {

struct Recipe {
  std::string_view name, json;  // "classify-csv", and the text of its file
};
// First those of examples; each folder's are sorted by name.
std::span<const Recipe> recipes();
// Throws not_found, with a suggestion.
const Recipe& find_recipe(const std::string& name);
// Adds the options of a file or, where there is no such file, of the recipe with this name.
void add_file_or_recipe(OptionSet& options, const std::string& file_or_recipe);

}  // namespace shoal::command
