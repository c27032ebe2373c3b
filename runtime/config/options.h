// One registry of options: a room declares its options as a table that binds names to the fields
// of a struct; files and command lines fill them; every wrong value is reported at once.
//
//   OptionSet options;
//   auto section = options.section("training", "How the model is trained");
//   section.integer("max_steps", &args.max_steps, {.help = "stop after this many; -1: epochs"});
//   section.choice("optim", &args.optim, {{"adamw", Optim::adamw}, {"lamb", Optim::lamb}});
//   options.add_file("run.json"), options.add_arguments(argv);
//   options.finish();   // throws with every problem, else args are filled
//
// A field's value at declaration is its default. The bound struct must outlive the OptionSet.
// Fields of std::optional<...> take null. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

// Aliases are other names of the same option (Hugging Face's, SMP's): several names with equal
// values pass, with different values are an error that shows both.
struct OptionRules {
  std::string help = {};
  std::vector<std::string> aliases = {};
};
struct IntegerRules {  // both ends allowed
  std::int64_t min = std::numeric_limits<std::int64_t>::min();
  std::int64_t max = std::numeric_limits<std::int64_t>::max();
  std::string help = {};
  std::vector<std::string> aliases = {};
};
struct RealRules {  // both ends allowed, unless `open_min`/`open_max`; infinities and NaN never are
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

  // Sections group options in --help and in dumps; asking again for a name continues it.
  Section section(std::string name, std::string title = {});

  // Values, weakest source first: defaults, files in the order added, then the command line.
  // Problems are kept for finish(). A JSON file is an object of options; an object under the name
  // of a section holds options of any section; keys that start with "_" are comments.
  void add_file(const std::string& path);
  void add_json(const nlohmann::json& values, const std::string& source);
  // --name value, --name=value, --flag, --no_flag; "-" in names reads as "_"; a list takes all
  // values up to the next option. Anything else is a problem.
  void add_arguments(std::span<const std::string> arguments);

  // For checks across options: reported with the rest.
  void add_problem(std::string text);
  // Writes the values into the bound fields. Throws invalid_argument with every problem, one a
  // line (a single problem is the whole message); then no field has changed.
  void finish();

  bool is_set(std::string_view name) const;  // given by a file or the command line
  std::string source_of(
      std::string_view name) const;  // "default", "run.json:/training/x", "command line --x"
  std::vector<std::string> notices() const;  // names accepted without effect that were given

  // The effective values by section, and their origins under "_sources". add_json takes it back.
  nlohmann::ordered_json dump() const;
  std::string help() const;  // for --help, grouped by section, at most 100 columns

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Declares options. Two declarations of one name or alias: internal error.
class OptionSet::Section {
 public:
  // Strings are read as the type they are bound to ("true", "5e-5", "8"), since SageMaker passes
  // hyperparameters as strings. Booleans: true/false/yes/no/on/off/1/0 in any case.
  Section& boolean(std::string name, bool* field, const OptionRules& rules = {});
  Section& boolean(std::string name, std::optional<bool>* field, const OptionRules& rules = {});
  // 5e8 and 3.0 are integers; 3.5 is not.
  // "auto" too, which `automatic` then is; the field keeps its default.
  Section& boolean_or_auto(std::string name, bool* field, bool* automatic,
                           const OptionRules& rules = {});
  Section& integer(std::string name, std::int64_t* field, const IntegerRules& rules = {});
  Section& integer(std::string name, int* field, const IntegerRules& rules = {});
  Section& integer(std::string name, std::optional<std::int64_t>* field,
                   const IntegerRules& rules = {});
  Section& real(std::string name, double* field, const RealRules& rules = {});
  Section& real(std::string name, std::optional<double>* field, const RealRules& rules = {});
  Section& string(std::string name, std::string* field, const OptionRules& rules = {});
  Section& string(std::string name, std::optional<std::string>* field,
                  const OptionRules& rules = {});
  // A JSON array, "a,b", or on the command line several values.
  Section& list(std::string name, std::vector<std::string>* field, const OptionRules& rules = {});
  Section& list(std::string name, std::vector<std::int64_t>* field, const IntegerRules& rules = {});
  // A free-form JSON object (lr_scheduler_kwargs).
  Section& object(std::string name, nlohmann::json* field, const OptionRules& rules = {});
  // A name that exists elsewhere and has no effect here; using it is told by notices().
  Section& ignored(std::string name, std::string reason);

  // The options that this section declared so far are read, and refused by the caller if they are
  // given: no message suggests one of them.
  Section& refused();

  // One of a few words. Several words may stand for one value; the first is the one printed.
  template <typename E>
  Section& choice(std::string name, E* field,
                  std::initializer_list<std::pair<const char*, E>> words, OptionRules rules = {});

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
    std::string name, E* field, std::initializer_list<std::pair<const char*, E>> words,
    OptionRules rules) {
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
