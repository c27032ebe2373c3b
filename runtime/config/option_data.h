// OptionSet's data about each option. Private to runtime/config.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/config/options.h"

namespace shoal {

struct Given {
  std::string written;   // the name or alias that was given
  nlohmann::json value;  // in the option's own type
  std::string source;
  int level = 0;  // higher levels override lower ones
};

struct OptionData {
  std::string name;
  std::vector<std::string> aliases;
  std::string help;
  std::string kind;                // "INTEGER", for --help
  std::string accepts;             // "an integer of at least 1"
  std::vector<std::string> words;  // accepted words of a choice
  std::size_t section = 0;
  bool is_boolean = false, is_list = false, is_object = false, is_ignored = false;
  bool is_refused = false;

  // Converts a value to the option's own type; empty if the option does not accept it.
  std::function<std::optional<nlohmann::json>(const nlohmann::json&)> normalise;
  std::function<void(const nlohmann::json&)> store;  // writes to the bound field
  nlohmann::json default_value;
  std::optional<Given> given;  // from the highest level so far
};

struct OptionSet::Impl {
  std::vector<std::pair<std::string, std::string>> sections;  // name, title
  std::vector<OptionData> options;
  std::vector<std::string> problems;
  std::map<std::string, std::string, std::less<>> synonyms;  // the option, by the other word
  int levels = 0;

  OptionData* find(std::string_view name);
  const OptionData* find(std::string_view name) const;
  void declare(OptionData option);
  void give(OptionData& option, std::string written, const nlohmann::json& value,
            std::string source, int level);
  void give_object(const nlohmann::json& values, const std::string& source, const std::string& path,
                   int level);
  void unknown(std::string_view name, const std::string& source);
};

}  // namespace shoal
