// shoal env: lists the registered environment variables and their current values.
#include <memory>

#include "commands.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::app {
namespace {

std::string_view kind_name(env::Kind kind) {
  switch (kind) {
    case env::Kind::string:
      return "string";
    case env::Kind::integer:
      return "integer";
    case env::Kind::real:
      return "real";
    case env::Kind::boolean:
      return "boolean";
  }
  return "?";
}

int print(bool json) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const env::Variable& variable : env::variables()) {
    const std::string value = env::get_string(variable);
    if (json) {
      all.push_back({{"name", variable.name},
                     {"kind", kind_name(variable.kind)},
                     {"default", variable.default_value},
                     {"value", value},
                     {"is_set", env::is_set(variable)},
                     {"help", variable.help}});
      continue;
    }
    terminal::print("{}={}{}\n    {} ({}, default {})\n", variable.name, value,
                    env::is_set(variable) ? "   [set]" : "", variable.help,
                    kind_name(variable.kind),
                    variable.default_value.empty() ? "empty" : variable.default_value);
  }
  if (json) print_json(all);
  return report_environment("shoal env");
}

}  // namespace

void add_env(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("env", "Environment variables, and what they are now");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "as JSON");
  command->callback([&action, json] { action = [json] { return print(*json); }; });
}

}  // namespace shoal::app
