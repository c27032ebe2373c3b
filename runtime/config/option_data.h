// What OptionSet keeps of each option. Not for other rooms.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/config/options.h"

namespace shoal {

struct Given {
  std::string written;   // the name or alias that was used
  nlohmann::json value;  // as the option keeps it
  std::string source;
  int level = 0;  // later sources are stronger
};

struct Option {
  std::string name;
  std::vector<std::string> aliases;
  std::string help;
  std::string kind;                // "INTEGER", for --help
  std::string accepts;             // "an integer of at least 1"
  std::vector<std::string> words;  // of a choice
  std::size_t section = 0;
  bool is_boolean = false, is_list = false, is_object = false, is_ignored = false;
  bool is_refused = false;

  // The value in the option's own type, or nothing when it does not take it.
  std::function<std::optional<nlohmann::json>(const nlohmann::json&)> normalise;
  std::function<void(const nlohmann::json&)> store;  // into the bound field
  nlohmann::json default_value;
  std::optional<Given> given;  // the strongest so far
};

struct OptionSet::Impl {
  std::vector<std::pair<std::string, std::string>> sections;  // name, title
  std::vector<Option> options;
  std::vector<std::string> problems;
  int levels = 0;

  Option* find(std::string_view name);
  const Option* find(std::string_view name) const;
  void declare(Option option);
  void give(Option& option, std::string written, const nlohmann::json& value, std::string source,
            int level);
  void give_object(const nlohmann::json& values, const std::string& source, const std::string& path,
                   int level);
  void unknown(std::string_view name, const std::string& source);
};

}  // namespace shoal
