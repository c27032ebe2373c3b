#include "shoal/runtime/config/options.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/config/option_data.h"
#include "shoal/runtime/io/json.h"

namespace shoal {
namespace {

using Json = nlohmann::json;

constexpr int kCommandLine = 1 << 30;  // the highest level

std::string shown(const Json& value) {
  return shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace), 100);
}

// Suggests the accepted word that is closest to a wrong value.
std::string nearly(const OptionData& option, const Json& value) {
  if (!value.is_string() || option.words.empty()) return "";
  const auto& given = value.get_ref<const std::string&>();
  const std::string meant = did_you_mean(given, option.words);
  return meant.empty() ? "" : "; " + meant;
}

// The options whose name ends with `name`, such as per_device_train_batch_size for batch_size.
std::vector<std::string> ending_with(const std::vector<OptionData>& options,
                                     std::string_view name) {
  const std::string end = fmt::format("_{}", name);
  std::vector<std::string> found;
  for (const OptionData& option : options) {
    if (option.is_refused) continue;
    const auto alias = std::ranges::find_if(
        option.aliases, [&end](const std::string& other) { return other.ends_with(end); });
    if (option.name.ends_with(end))
      found.push_back(option.name);
    else if (alias != option.aliases.end())
      found.push_back(*alias);
  }
  return found;
}

std::string underscored(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '-', '_');
  return text;
}

// Lower-case, with '_' for '-'.
std::string plain(std::string_view name) {
  std::string text = underscored(name);
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// Appends `text` to `out`, wrapped at 100 columns and indented by `indent`. `column`: the length of
// the current line.
void wrap(std::string& out, std::size_t column, std::size_t indent, std::string_view text) {
  constexpr std::size_t kWidth = 100;
  while (!text.empty()) {
    const auto space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (column > indent && column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    text.remove_prefix(space == text.npos ? text.size() : space + 1);
  }
  out += '\n';
}

}  // namespace

OptionData* OptionSet::Impl::find(std::string_view name) {
  for (OptionData& option : options)
    if (option.name == name || std::ranges::find(option.aliases, name) != option.aliases.end())
      return &option;
  return nullptr;
}

const OptionData* OptionSet::Impl::find(std::string_view name) const {
  return const_cast<Impl*>(this)->find(name);
}

void OptionSet::Impl::declare(OptionData option) {
  std::vector<std::string> names = option.aliases;
  names.push_back(option.name);
  for (const std::string& name : names)
    if (name.empty() || name.starts_with('_') || find(name))
      throw_error(ErrorCode::internal, "option '{}' is declared twice, or has a bad name", name);
  options.push_back(std::move(option));
}

void OptionSet::Impl::give(OptionData& option, std::string written, const Json& value,
                           std::string source, int level) {
  auto normal = option.normalise(value);
  if (!normal) {
    problems.push_back(fmt::format("{} is {} ({}); it takes {}{}", written, shown(value), source,
                                   option.accepts, nearly(option, value)));
    return;
  }
  auto& given = option.given;
  // Two names of one option must agree within one source. Repeating one name on a command line is
  // the usual way to override its value.
  if (given && given->level == level && given->written != written && given->value != *normal) {
    problems.push_back(fmt::format(
        "{} is {} ({}) and {} is {} ({}): they are one option and must "
        "be equal",
        given->written, shown(given->value), given->source, written, shown(*normal), source));
    return;
  }
  if (!given || level >= given->level)
    given = Given{std::move(written), *std::move(normal), std::move(source), level};
}

void OptionSet::Impl::unknown(std::string_view name, const std::string& source) {
  // Suggestions take time to compute, so only the first problems get one.
  constexpr std::size_t kSuggestions = 10;
  if (problems.size() >= kSuggestions)
    return problems.push_back(
        fmt::format("there is no option '{}' ({})", shortened(name, 100), source));
  std::vector<std::string> names;
  for (const OptionData& option : options) {
    if (option.is_refused) continue;
    names.push_back(option.name);
    names.insert(names.end(), option.aliases.begin(), option.aliases.end());
  }
  const auto problem = [&](const std::string& hint) {
    problems.push_back(
        fmt::format("there is no option '{}' ({}){}", shortened(name, 100), source, hint));
  };
  if (const auto synonym = synonyms.find(plain(name)); synonym != synonyms.end())
    return problem(fmt::format("; did you mean {}?", synonym->second));
  if (const auto meant = ending_with(options, plain(name)); !meant.empty() && meant.size() <= 3)
    return problem(fmt::format("; did you mean {}?", fmt::join(meant, " or ")));
  problem("; " + did_you_mean(name, names, "--help-all lists all"));
}

void OptionSet::Impl::give_object(const Json& values, const std::string& source,
                                  const std::string& path, int level) {
  for (const auto& [key, value] : values.items()) {
    if (key.starts_with('_')) continue;
    const std::string place = path + "/" + key;
    OptionData* option = find(key);
    const bool is_section =
        std::ranges::find(sections, key, &std::pair<std::string, std::string>::first) !=
        sections.end();
    if (value.is_object() && is_section && !(option && option->is_object))
      give_object(value, source, place, level);
    else if (option)
      give(*option, key, value, source + ":" + place, level);
    else
      unknown(key, source + ":" + place);
  }
}

OptionSet::OptionSet() : impl_(std::make_unique<Impl>()) {}
OptionSet::~OptionSet() = default;
OptionSet::OptionSet(OptionSet&&) noexcept = default;
OptionSet& OptionSet::operator=(OptionSet&&) noexcept = default;

OptionSet::Section OptionSet::section(std::string name, std::string title) {
  auto& sections = impl_->sections;
  const auto known = std::ranges::find(sections, name, &std::pair<std::string, std::string>::first);
  const auto index = static_cast<std::size_t>(known - sections.begin());
  if (known == sections.end()) sections.emplace_back(std::move(name), "");
  if (!title.empty()) sections[index].second = std::move(title);
  return {*impl_, index};
}

void OptionSet::add_file(const std::string& path) {
  try {
    add_json(read_json_file(path), path);
  } catch (const Error& problem) {
    add_problem(problem.what());
  }
}

void OptionSet::add_json(const Json& values, const std::string& source) {
  const int level = ++impl_->levels;
  if (!values.is_object())
    return add_problem(
        fmt::format("{} is not a JSON object of options, but {}", source, shown(values)));
  impl_->give_object(values, source, "", level);
}

void OptionSet::add_arguments(std::span<const std::string> arguments) {
  const auto is_option = [](std::string_view text) { return text.starts_with("--"); };
  std::string before;  // explains why the option before did not take the following word
  for (std::size_t i = 0; i < arguments.size();) {
    const std::string_view argument = arguments[i++];
    // Collects values up to the next option.
    std::size_t end = i;
    while (end < arguments.size() && !is_option(arguments[end])) ++end;
    if (!is_option(argument) || argument.size() == 2) {
      add_problem(fmt::format("'{}' on the command line belongs to no option{}",
                              shortened(argument), before));
      continue;
    }
    before.clear();
    const auto equals = argument.find('=');
    const bool has_value = equals != argument.npos;
    const std::string written = underscored(argument.substr(2, has_value ? equals - 2 : equals));
    const std::string source = "command line --" + shortened(written, 100);
    OptionData* option = impl_->find(written);
    bool negated = false;
    if (!option && written.starts_with("no_") && !has_value) {
      option = impl_->find(std::string_view(written).substr(3));
      negated = option && option->is_boolean;
      if (!negated) option = nullptr;
    }
    if (!option) {
      impl_->unknown(written, source);
      i = end;  // its values would only cause more messages
      continue;
    }
    const std::string name = negated ? written.substr(3) : written;
    Json value;
    if (has_value) {
      value = std::string(argument.substr(equals + 1));
    } else if (option->is_boolean) {
      value = !negated;
      if (!negated && i < end && option->normalise(arguments[i]))
        value = arguments[i++];
      else if (!negated)
        before = fmt::format("; --{} takes {}", written, option->accepts);
    } else if (option->is_list) {
      value = end == i + 1 ? Json(arguments[i])
                           : Json(std::vector<std::string>(
                                 arguments.begin() + static_cast<std::ptrdiff_t>(i),
                                 arguments.begin() + static_cast<std::ptrdiff_t>(end)));
      i = end;
    } else if (i < end) {
      value = arguments[i++];
    } else if (!option->is_ignored) {
      add_problem(fmt::format("--{} needs a value: {}", written, option->accepts));
      continue;
    }
    impl_->give(*option, name, value, source, kCommandLine);
  }
}

void OptionSet::add_synonyms(std::span<const std::pair<const char*, const char*>> word_and_option) {
  for (const auto& [word, name] : word_and_option) {
    const OptionData* const option = impl_->find(name);
    if (option == nullptr || option->is_refused || impl_->find(word) != nullptr)
      throw_error(ErrorCode::internal, "'{}' is no synonym of '{}'", word, name);
    impl_->synonyms.emplace(word, name);
  }
}

void OptionSet::add_problem(std::string text) { impl_->problems.push_back(std::move(text)); }

void OptionSet::finish() {
  const auto& problems = impl_->problems;
  if (problems.size() == 1) throw Error(ErrorCode::invalid_argument, problems[0]);
  if (!problems.empty())
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} options are wrong:\n  {}", problems.size(), fmt::join(problems, "\n  ")));
  for (const OptionData& option : impl_->options)
    if (option.given) option.store(option.given->value);
}

bool OptionSet::is_set(std::string_view name) const {
  const OptionData* option = impl_->find(name);
  SHOAL_CHECK(option, "no option '{}' is declared", name);
  return option->given.has_value();
}

std::string OptionSet::source_of(std::string_view name) const {
  const OptionData* option = impl_->find(name);
  SHOAL_CHECK(option, "no option '{}' is declared", name);
  return option->given ? option->given->source : "default";
}

std::vector<std::string> OptionSet::notices() const {
  std::vector<std::string> texts;
  for (const OptionData& option : impl_->options)
    if (option.is_ignored && option.given)
      texts.push_back(fmt::format("{} ({}) has no effect: {}", option.given->written,
                                  option.given->source, option.help));
  return texts;
}

nlohmann::ordered_json OptionSet::dump() const {
  auto result = nlohmann::ordered_json::object();
  auto sources = nlohmann::ordered_json::object();
  for (std::size_t section = 0; section < impl_->sections.size(); ++section) {
    auto values = nlohmann::ordered_json::object();
    for (const OptionData& option : impl_->options) {
      if (option.section != section || option.is_ignored) continue;
      values[option.name] = option.given ? option.given->value : option.default_value;
      sources[option.name] = option.given ? option.given->source : "default";
    }
    if (!values.empty()) result[impl_->sections[section].first] = std::move(values);
  }
  result["_sources"] = std::move(sources);
  return result;
}

std::string OptionSet::help(std::span<const std::string_view> only) const {
  constexpr std::size_t kIndent = 36;
  for (const std::string_view name : only) SHOAL_ASSERT(impl_->find(name) != nullptr);
  std::string text;
  for (std::size_t section = 0; section < impl_->sections.size(); ++section) {
    const auto is_shown = [&](const OptionData& option) {
      return option.section == section && !option.is_ignored &&
             (only.empty() || std::ranges::find(only, option.name) != only.end());
    };
    if (!only.empty() && std::ranges::none_of(impl_->options, is_shown)) continue;
    const auto& [name, title] = impl_->sections[section];
    text +=
        fmt::format("{}{}{}{}\n", text.empty() ? "" : "\n", name, title.empty() ? "" : ": ", title);
    for (const OptionData& option : impl_->options) {
      if (!is_shown(option)) continue;
      // Long choices do not fit beside the name; the help text lists them.
      const bool short_kind = option.kind.size() <= 16;
      std::string head = fmt::format("  --{}{}{}", option.name, option.kind.empty() ? "" : " ",
                                     short_kind ? option.kind : std::string("WORD"));
      std::string body = option.help;
      if (!body.empty()) body += " ";
      body += fmt::format("({}; default {}", option.accepts, shown(option.default_value));
      for (const std::string& alias : option.aliases) body += fmt::format("; also --{}", alias);
      body += ")";
      if (head.size() + 2 > kIndent)
        head += "\n" + std::string(kIndent, ' ');
      else
        head.resize(kIndent, ' ');
      text += head;
      wrap(text, kIndent, kIndent, body);
    }
  }
  return text;
}

}  // namespace shoal
