// A registry of options. Each library declares its options in a table that binds names to fields of
// a struct. Files and command lines fill the fields. All invalid values are reported together.
//
//   OptionSet options;
//   auto section = options.section("training", "How the model is trained");
//   section.integer("max_steps", &args.max_steps, {.help = "stop after this many; -1: epochs"});
//   section.choice("optim", &args.optim, {{"adamw", Optim::adamw}, {"lamb", Optim::lamb}});
//   options.add_file("run.json"), options.add_arguments(argv);
//   options.finish();   // fills args, or throws with every problem
//
// A field's value at declaration is its default. The bound struct must outlive the OptionSet.
// std::optional<...> fields accept null. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

// Aliases are other names of the same option (Hugging Face's, SMP's). If several names are given,
// equal values are accepted, and different values are an error that shows both.
struct OptionRules {
  std::string help = {};
  std::vector<std::string> aliases = {};
};
struct IntegerRules {  // the limits are inclusive
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
  std::string help = {};
  std::vector<std::string> aliases = {};
};
struct RealRules {  // limits are inclusive unless `open_min`/`open_max`; no infinities or NaN
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false, open_max = false;
  std::string help = {};
  std::vector<std::string> aliases = {};
};

class OptionSet {
 public:
  class Section;
  OptionSet();
  ~OptionSet();
  OptionSet(OptionSet&&) noexcept;
  OptionSet& operator=(OptionSet&&) noexcept;

  // Sections group options in --help and dumps. A second call with the same name continues that
  // section.
  Section section(std::string name, std::string title = {});

  // Sources in increasing priority: defaults, files in the order added, the command line. finish()
  // reports all problems. A JSON file is an object of options. An object under a section's name
  // holds options of any section; keys that start with "_" are ignored.
  void add_file(const std::string& path);
  void add_json(const nlohmann::json& values, const std::string& source);
  // Accepts --name value, --name=value, --flag, --no_flag. "-" in names reads as "_". A list takes
  // all values up to the next option. Anything else is a problem.
  void add_arguments(std::span<const std::string> arguments);

  // Other words for options ("lr" for learning_rate), only for the suggestion after a wrong name.
  void add_synonyms(std::span<const std::pair<const char*, const char*>> word_and_option);
  // For checks across options. finish() reports this problem together with the others.
  void add_problem(std::string text);
  // Writes the values to the bound fields. On problems, throws invalid_argument with one line per
  // problem (a single problem is the whole message) and changes no field.
  void finish();

  bool is_set(std::string_view name) const;  // given by a file or the command line
  std::string source_of(
      std::string_view name) const;  // "default", "run.json:/training/x", "command line --x"
  std::vector<std::string> notices() const;  // one for each given option that has no effect

  // Effective values by section, and their sources under "_sources". add_json() accepts the result.
  nlohmann::ordered_json dump() const;
  // For --help, grouped by section, at most 100 columns. `only`: the options to show; empty: all.
  std::string help(std::span<const std::string_view> only = {}) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Declares options. Declaring a name or alias twice is an internal error.
class OptionSet::Section {
 public:
  // Strings are parsed as the type of their field ("true", "5e-5", "8"), since SageMaker passes
  // hyperparameters as strings. Booleans: true/false/yes/no/on/off/1/0 in any case.
  Section& boolean(std::string name, bool* field, const OptionRules& rules = {});
  Section& boolean(std::string name, std::optional<bool>* field, const OptionRules& rules = {});
  // Also accepts "auto", which sets `automatic`; the field then keeps its default.
  Section& boolean_or_auto(std::string name, bool* field, bool* automatic,
                           const OptionRules& rules = {});
  // 5e8 and 3.0 are integers; 3.5 is not.
  Section& integer(std::string name, std::int64_t* field, const IntegerRules& rules = {});
  Section& integer(std::string name, int* field, const IntegerRules& rules = {});
  Section& integer(std::string name, std::optional<std::int64_t>* field,
                   const IntegerRules& rules = {});
  Section& real(std::string name, double* field, const RealRules& rules = {});
  Section& real(std::string name, std::optional<double>* field, const RealRules& rules = {});
  Section& string(std::string name, std::string* field, const OptionRules& rules = {});
  Section& string(std::string name, std::optional<std::string>* field,
                  const OptionRules& rules = {});
  // Accepts a JSON array, "a,b", or several values on the command line.
  Section& list(std::string name, std::vector<std::string>* field, const OptionRules& rules = {});
  Section& list(std::string name, std::vector<std::int64_t>* field, const IntegerRules& rules = {});
  // Like list(), for texts, which may contain commas: a value that is no JSON array is one text.
  Section& texts(std::string name, std::vector<std::string>* field, const OptionRules& rules = {});
  // Accepts any JSON object (lr_scheduler_kwargs).
  Section& object(std::string name, nlohmann::json* field, const OptionRules& rules = {});
  // An option of other programs that has no effect here. notices() reports its use.
  Section& ignored(std::string name, std::string reason);

  // Marks the section's options declared so far as unsupported. They are parsed, but no message
  // suggests them, and the caller rejects them if they are given.
  Section& refused();

  // Accepts one of several words. Words may share a value; the first of them is printed.
  template <typename E>
  Section& choice(std::string name, E* field,
                  const std::vector<std::pair<const char*, std::type_identity_t<E>>>& words,
                  OptionRules rules = {});

 private:
  friend class OptionSet;
  Section(Impl& owner, std::size_t index) : owner_(&owner), index_(index) {}
  Section& add_choice(std::string name, std::vector<std::string> words,
                      std::function<void(std::size_t)> set, const std::function<std::size_t()>& get,
                      OptionRules rules);
  Impl* owner_;
  std::size_t index_;
};

template <typename E>
OptionSet::Section& OptionSet::Section::choice(
    std::string name, E* field,
    const std::vector<std::pair<const char*, std::type_identity_t<E>>>& words, OptionRules rules) {
  std::vector<std::string> names;
  std::vector<E> values;
  for (const auto& [word, value] : words) {
    names.emplace_back(word);
    values.push_back(value);
  }
  return add_choice(
      std::move(name), std::move(names), [field, values](std::size_t i) { *field = values[i]; },
      [field, values] {
        return static_cast<std::size_t>(std::ranges::find(values, *field) - values.begin());
      },
      std::move(rules));
}

}  // namespace shoal
