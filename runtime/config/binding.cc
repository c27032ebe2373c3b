// Defines how each type of option reads a value and stores it in the bound field.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/config/option_data.h"
#include "shoal/runtime/io/json.h"

namespace shoal {
namespace {

using Json = nlohmann::json;
using Maybe = std::optional<Json>;

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return result;
}

template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  text = trimmed(text);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  Number number{};
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Maybe read_boolean(const Json& value) {
  if (value.is_boolean()) return value;
  if (value.is_number_integer() && (value == 0 || value == 1)) return Json(value == 1);
  if (!value.is_string()) return std::nullopt;
  const std::string word = lower(trimmed(value.get_ref<const std::string&>()));
  for (const char* yes : {"true", "yes", "on", "1"})
    if (word == yes) return Json(true);
  for (const char* no : {"false", "no", "off", "0"})
    if (word == no) return Json(false);
  return std::nullopt;
}

std::optional<double> read_number(const Json& value) {
  std::optional<double> number;
  if (value.is_number())
    number = value.get<double>();
  else if (value.is_string())
    number = parse_number<double>(value.get_ref<const std::string&>());
  if (number && !std::isfinite(*number)) number.reset();
  return number;
}

std::optional<std::int64_t> read_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_string())
    if (const auto number = parse_number<std::int64_t>(value.get_ref<const std::string&>()))
      return number;
  // Accepts 5e8 and "3.0", if a double represents the whole number exactly.
  const auto number = read_number(value);
  if (!number || *number != std::floor(*number) || std::abs(*number) > 0x1p53) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  text = trimmed(text);
  while (!text.empty()) {
    const auto comma = text.find(',');
    parts.emplace_back(trimmed(text.substr(0, comma)));
    if (comma == text.npos) break;
    text.remove_prefix(comma + 1);
  }
  return parts;
}

Maybe parse_array(const std::string& text) {
  try {
    return parse_json(text, "list");
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Reads a JSON array, a string that holds one, or comma-separated words.
Maybe read_array(const Json& value) {
  if (value.is_array()) return value;
  if (value.is_number()) return Json::array({value});
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  if (trimmed(text).starts_with('[')) return parse_array(text);
  return Json(split(text));
}

// Like read_array(), but a string that is no JSON array is one text.
Maybe read_texts(const Json& value) {
  if (!value.is_string()) return read_array(value);
  const auto& text = value.get_ref<const std::string&>();
  const Maybe array = trimmed(text).starts_with('[') ? parse_array(text) : std::nullopt;
  return array ? array : Json::array({text});
}

Maybe read_words(const Maybe& array) {
  if (!array) return std::nullopt;
  Json words = Json::array();
  for (const Json& item : *array) {
    if (!item.is_string() && !item.is_number()) return std::nullopt;
    words.push_back(item.is_string() ? item : Json(item.dump()));
  }
  return words;
}

bool means_null(const Json& value) {
  if (value.is_null()) return true;
  if (!value.is_string()) return false;
  const std::string word = lower(trimmed(value.get_ref<const std::string&>()));
  return word.empty() || word == "null" || word == "none";
}

std::string describe(const IntegerRules& rules, bool many) {
  const bool low = rules.min != std::numeric_limits<std::int64_t>::min();
  const bool high = rules.max != std::numeric_limits<std::int64_t>::max();
  const std::string what = many ? "integers" : "an integer";
  if (low && high) return fmt::format("{} from {} to {}", what, rules.min, rules.max);
  if (low) return fmt::format("{} of at least {}", what, rules.min);
  if (high) return fmt::format("{} of at most {}", what, rules.max);
  return what;
}

std::string describe(const RealRules& rules) {
  std::string text = "a number";
  if (std::isfinite(rules.min))
    text += fmt::format(" {} {}", rules.open_min ? "above" : "of at least", rules.min);
  if (std::isfinite(rules.max))
    text += fmt::format("{} {} {}", std::isfinite(rules.min) ? " and" : "",
                        rules.open_max ? "below" : "at most", rules.max);
  return text;
}

// Converts a field to JSON and back; an empty optional field is null.
template <typename T>
Json load(const T& field) {
  return Json(field);
}
template <typename T>
Json load(const std::optional<T>& field) {
  return field ? Json(*field) : Json(nullptr);
}
template <typename T>
void store(T& field, const Json& value) {
  value.get_to(field);
}
template <typename T>
void store(std::optional<T>& field, const Json& value) {
  if (value.is_null())
    field.reset();
  else
    field = value.get<T>();
}

template <typename T>
constexpr bool is_optional = false;
template <typename T>
constexpr bool is_optional<std::optional<T>> = true;

template <typename Field, typename Reader>
OptionData make_option(std::string name, Field* field, std::string help,
                       std::vector<std::string> aliases, std::string kind, std::string accepts,
                       const Reader& read) {
  OptionData option;
  option.name = std::move(name);
  option.aliases = std::move(aliases);
  option.help = std::move(help);
  option.kind = std::move(kind);
  option.accepts = std::move(accepts);
  option.default_value = load(*field);
  option.store = [field](const Json& value) { store(*field, value); };
  if constexpr (is_optional<Field>) {
    option.accepts += " or null";
    // For a string field, only null and "null" mean null, since "" and "none" may be intended.
    constexpr bool is_text = std::is_same_v<Field, std::optional<std::string>>;
    option.normalise = [read](const Json& value) -> Maybe {
      if (is_text ? value.is_null() || value == "null" : means_null(value)) return Json(nullptr);
      return read(value);
    };
  } else {
    option.normalise = read;
  }
  return option;
}

auto integer_reader(const IntegerRules& rules) {
  return [min = rules.min, max = rules.max](const Json& value) -> Maybe {
    const auto number = read_integer(value);
    if (!number || *number < min || *number > max) return std::nullopt;
    return Json(*number);
  };
}

template <typename Field>
OptionData integer_option(std::string name, Field* field, const IntegerRules& rules) {
  return make_option(std::move(name), field, rules.help, rules.aliases, "INTEGER",
                     describe(rules, false), integer_reader(rules));
}

template <typename Field>
OptionData real_option(std::string name, Field* field, const RealRules& rules) {
  return make_option(std::move(name), field, rules.help, rules.aliases, "NUMBER", describe(rules),
                     [rules](const Json& value) -> Maybe {
                       const auto number = read_number(value);
                       if (!number || *number < rules.min || *number > rules.max ||
                           (rules.open_min && *number == rules.min) ||
                           (rules.open_max && *number == rules.max))
                         return std::nullopt;
                       return Json(*number);
                     });
}

template <typename Field>
OptionData boolean_option(std::string name, Field* field, const OptionRules& rules) {
  OptionData option = make_option(std::move(name), field, rules.help, rules.aliases, "",
                                  "true or false", read_boolean);
  option.is_boolean = true;
  return option;
}

constexpr const char* kAuto = "auto";

OptionData automatic_option(std::string name, bool* field, bool* automatic,
                            const OptionRules& rules) {
  OptionData option = boolean_option(std::move(name), field, rules);
  option.accepts = "true, false or auto";
  if (*automatic) option.default_value = kAuto;
  option.normalise = [](const Json& value) -> Maybe {
    if (value.is_string() && lower(trimmed(value.get_ref<const std::string&>())) == kAuto)
      return Json(kAuto);
    return read_boolean(value);
  };
  option.store = [field, automatic](const Json& value) {
    *automatic = value == kAuto;
    if (!*automatic) store(*field, value);
  };
  return option;
}

template <typename Field>
OptionData string_option(std::string name, Field* field, const OptionRules& rules) {
  return make_option(std::move(name), field, rules.help, rules.aliases, "TEXT", "text",
                     [](const Json& value) -> Maybe {
                       if (value.is_string()) return value;
                       // An unquoted number used as a name, such as a task or a tag called 1.
                       if (value.is_number()) return Json(value.dump());
                       return std::nullopt;
                     });
}

}  // namespace

#define SHOAL_DECLARE(make)           \
  do {                                \
    OptionData made = (make);         \
    made.section = index_;            \
    owner_->declare(std::move(made)); \
    return *this;                     \
  } while (false)

OptionSet::Section& OptionSet::Section::boolean(std::string name, bool* field,
                                                const OptionRules& rules) {
  SHOAL_DECLARE(boolean_option(std::move(name), field, rules));
}
OptionSet::Section& OptionSet::Section::boolean(std::string name, std::optional<bool>* field,
                                                const OptionRules& rules) {
  SHOAL_DECLARE(boolean_option(std::move(name), field, rules));
}
OptionSet::Section& OptionSet::Section::boolean_or_auto(std::string name, bool* field,
                                                        bool* automatic, const OptionRules& rules) {
  SHOAL_DECLARE(automatic_option(std::move(name), field, automatic, rules));
}
OptionSet::Section& OptionSet::Section::integer(std::string name, std::int64_t* field,
                                                const IntegerRules& rules) {
  SHOAL_DECLARE(integer_option(std::move(name), field, rules));
}
OptionSet::Section& OptionSet::Section::integer(std::string name, int* field,
                                                const IntegerRules& rules) {
  IntegerRules bounded = rules;
  bounded.min = std::max<std::int64_t>(rules.min, std::numeric_limits<int>::min());
  bounded.max = std::min<std::int64_t>(rules.max, std::numeric_limits<int>::max());
  const std::string accepts = [&] {
    IntegerRules shown = bounded;  // do not show the limits of int itself
    if (shown.min == std::numeric_limits<int>::min())
      shown.min = std::numeric_limits<std::int64_t>::min();
    if (shown.max == std::numeric_limits<int>::max())
      shown.max = std::numeric_limits<std::int64_t>::max();
    return describe(shown, false);
  }();
  OptionData option = integer_option(std::move(name), field, bounded);
  option.accepts = accepts;
  SHOAL_DECLARE(std::move(option));
}
OptionSet::Section& OptionSet::Section::integer(std::string name,
                                                std::optional<std::int64_t>* field,
                                                const IntegerRules& rules) {
  SHOAL_DECLARE(integer_option(std::move(name), field, rules));
}
OptionSet::Section& OptionSet::Section::real(std::string name, double* field,
                                             const RealRules& rules) {
  SHOAL_DECLARE(real_option(std::move(name), field, rules));
}
OptionSet::Section& OptionSet::Section::real(std::string name, std::optional<double>* field,
                                             const RealRules& rules) {
  SHOAL_DECLARE(real_option(std::move(name), field, rules));
}
OptionSet::Section& OptionSet::Section::string(std::string name, std::string* field,
                                               const OptionRules& rules) {
  SHOAL_DECLARE(string_option(std::move(name), field, rules));
}
OptionSet::Section& OptionSet::Section::string(std::string name, std::optional<std::string>* field,
                                               const OptionRules& rules) {
  SHOAL_DECLARE(string_option(std::move(name), field, rules));
}

OptionSet::Section& OptionSet::Section::list(std::string name, std::vector<std::string>* field,
                                             const OptionRules& rules) {
  OptionData option = make_option(std::move(name), field, rules.help, rules.aliases, "TEXT ...",
                                  "a list of words", [](const Json& value) -> Maybe {
                                    if (value.is_null()) return Json::array();
                                    return read_words(read_array(value));
                                  });
  option.is_list = true;
  SHOAL_DECLARE(std::move(option));
}

OptionSet::Section& OptionSet::Section::texts(std::string name, std::vector<std::string>* field,
                                              const OptionRules& rules) {
  OptionData option = make_option(std::move(name), field, rules.help, rules.aliases, "TEXT ...",
                                  "texts", [](const Json& value) -> Maybe {
                                    if (value.is_null()) return Json::array();
                                    return read_words(read_texts(value));
                                  });
  option.is_list = true;
  SHOAL_DECLARE(std::move(option));
}

OptionSet::Section& OptionSet::Section::list(std::string name, std::vector<std::int64_t>* field,
                                             const IntegerRules& rules) {
  OptionData option = make_option(std::move(name), field, rules.help, rules.aliases, "INTEGER ...",
                                  "a list of " + describe(rules, true),
                                  [read = integer_reader(rules)](const Json& value) -> Maybe {
                                    if (value.is_null()) return Json::array();
                                    const Maybe array = read_array(value);
                                    if (!array) return std::nullopt;
                                    Json numbers = Json::array();
                                    for (const Json& item : *array) {
                                      const Maybe number = read(item);
                                      if (!number) return std::nullopt;
                                      numbers.push_back(*number);
                                    }
                                    return numbers;
                                  });
  option.is_list = true;
  SHOAL_DECLARE(std::move(option));
}

OptionSet::Section& OptionSet::Section::object(std::string name, nlohmann::json* field,
                                               const OptionRules& rules) {
  if (field->is_null()) *field = Json::object();
  OptionData option = make_option(std::move(name), field, rules.help, rules.aliases, "JSON",
                                  "a JSON object", [](const Json& value) -> Maybe {
                                    if (value.is_object()) return value;
                                    if (means_null(value)) return Json::object();
                                    if (!value.is_string()) return std::nullopt;
                                    try {
                                      Json parsed =
                                          parse_json(value.get_ref<const std::string&>(), "value");
                                      if (!parsed.is_object()) return std::nullopt;
                                      return parsed;
                                    } catch (const Error&) {
                                      return std::nullopt;
                                    }
                                  });
  option.is_object = true;
  SHOAL_DECLARE(std::move(option));
}

OptionSet::Section& OptionSet::Section::ignored(std::string name, std::string reason) {
  OptionData option;
  option.name = std::move(name);
  option.help = std::move(reason);
  option.accepts = "anything";
  option.is_ignored = true;
  option.normalise = [](const Json& value) -> Maybe { return value; };
  option.store = [](const Json&) {};
  SHOAL_DECLARE(std::move(option));
}

OptionSet::Section& OptionSet::Section::refused() {
  for (OptionData& option : owner_->options)
    if (option.section == index_) option.is_refused = true;
  return *this;
}

OptionSet::Section& OptionSet::Section::add_choice(std::string name, std::vector<std::string> words,
                                                   std::function<void(std::size_t)> set,
                                                   const std::function<std::size_t()>& get,
                                                   OptionRules rules) {
  OptionData option;
  option.name = std::move(name);
  option.aliases = std::move(rules.aliases);
  option.help = std::move(rules.help);
  std::vector<std::string> shown = words;
  for (std::string& word : shown)
    if (word.empty()) word = R"("")";
  option.kind = fmt::format("{}", fmt::join(shown, "|"));
  option.accepts = fmt::format("one of {}", fmt::join(shown, ", "));
  option.words = words;
  const std::size_t initial = get();
  SHOAL_CHECK(initial < words.size(), "option {}: its default is none of its words", option.name);
  option.default_value = words[initial];
  const auto index_of = [words](const Json& value) -> std::size_t {
    const std::string wanted = lower(trimmed(value.get_ref<const std::string&>()));
    std::size_t i = 0;
    while (i < words.size() && lower(words[i]) != wanted) ++i;
    return i;
  };
  option.normalise = [words, index_of](const Json& value) -> Maybe {
    if (!value.is_string()) return std::nullopt;
    const std::size_t i = index_of(value);
    return i < words.size() ? Maybe(words[i]) : std::nullopt;
  };
  option.store = [set = std::move(set), index_of](const Json& value) { set(index_of(value)); };
  SHOAL_DECLARE(std::move(option));
}

#undef SHOAL_DECLARE

}  // namespace shoal
