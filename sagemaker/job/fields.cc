#include "shoal/sagemaker/job/fields.h"

#include <algorithm>
#include <regex>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/sagemaker/job/secrets.h"

namespace shoal::sagemaker {
namespace {

const Json kEmptyObject = Json::object();

// Formats a value for messages. Long values are cut; for secret ones only the type is shown.
std::string shown(const Json& value, bool secret) {
  if (secret) {
    if (value.is_string()) return "a text (not shown)";
    if (value.is_number()) return "a number (not shown)";
    if (value.is_array()) return "a list (not shown)";
    return value.is_object() ? "an object (not shown)" : "true or false";
  }
  return shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace), 80);
}

std::string escaped(std::string_view name) {  // RFC 6901
  std::string text;
  for (const char c : name) {
    if (c == '~')
      text += "~0";
    else if (c == '/')
      text += "~1";
    else
      text += c;
  }
  return text;
}

}  // namespace

void Problems::add(std::string_view path, std::string_view text) {
  std::string line =
      path.empty() ? std::string(text) : fmt::format("{}: {}", shortened(path), text);
  if (known_.insert(line).second) lines_.push_back(std::move(line));
}

void Problems::check() const {
  if (lines_.empty()) return;
  std::string text;
  for (const std::string& line : lines_) text += (text.empty() ? "" : "\n") + line;
  throw Error(ErrorCode::invalid_argument, text);
}

std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string did_you_mean(std::string_view name, std::span<const std::string> names) {
  const std::string meant = shoal::did_you_mean(name, names);
  return meant.empty() ? std::string() : "; " + meant;
}

TextRules s3_rules() {
  return {.min = 1, .max = 1024, .pattern = kS3Pattern, .looks = "s3://bucket/prefix"};
}

TextRules kms_key_rules() {
  return {.max = 2048, .pattern = "[a-zA-Z0-9:/_-]*", .looks = "a key's id or ARN"};
}

bool check_text(Problems& problems, const std::string& path, const std::string& text,
                const TextRules& rules) {
  const std::size_t length = characters(text);
  if (length < rules.min || length > rules.max) {
    problems.add(
        path,
        rules.max == std::numeric_limits<std::size_t>::max()
            ? fmt::format("has {} characters; at least {} are needed", length, rules.min)
            : fmt::format("has {} characters; {} to {} are allowed", length, rules.min, rules.max));
    return false;
  }
  if (!rules.secret && has_password(text)) {
    problems.add(path, "has a password in its URL, which others would see; leave it out");
    return false;
  }
  if (!rules.choices.empty() && std::ranges::find(rules.choices, text) == rules.choices.end()) {
    problems.add(path,
                 fmt::format("{} is not one of {}{}", shown(text, rules.secret),
                             fmt::join(rules.choices, ", "), did_you_mean(text, rules.choices)));
    return false;
  }
  if (rules.pattern != nullptr && !std::regex_match(text, std::regex(rules.pattern))) {
    problems.add(path,
                 fmt::format("{} does not look like {}", shown(text, rules.secret), rules.looks));
    return false;
  }
  return true;
}

Fields::Fields(const Json& object, std::string path, Problems& problems, bool secret)
    : object_(&object), path_(std::move(path)), problems_(&problems), secret_(secret) {
  if (object.is_object()) return;
  problems.add(path_, fmt::format("is {}, but an object is needed", shown(object, secret)));
  object_ = &kEmptyObject;
}

std::string Fields::path(std::string_view name) const {
  return name.empty() ? path_ : path_ + "/" + escaped(name);
}

const Json* Fields::value(const std::string& name) {
  if (std::ranges::find(known_, name) == known_.end()) known_.push_back(name);
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

bool Fields::is_secret(std::string_view name) const { return secret_ || is_name_of_secret(name); }

bool Fields::has(const std::string& name) { return value(name) != nullptr; }

std::optional<std::string> Fields::text(const std::string& name, const TextRules& rules) {
  const Json* given = value(name);
  if (given == nullptr) return std::nullopt;
  const bool secret = is_secret(name) || rules.secret;
  if (!given->is_string()) {
    problem(name, fmt::format("is {}, but a text is needed", shown(*given, secret)));
    return std::nullopt;
  }
  auto text = given->get<std::string>();
  TextRules all = rules;
  all.secret = secret;
  if (!check_text(*problems_, path(name), text, all)) return std::nullopt;
  return text;
}

std::optional<std::int64_t> Fields::integer(const std::string& name, std::int64_t min,
                                            std::int64_t max) {
  const Json* given = value(name);
  if (given == nullptr) return std::nullopt;
  if (!given->is_number_integer() ||
      (given->is_number_unsigned() && given->get<std::uint64_t>() > std::uint64_t{1} << 62U)) {
    problem(name, fmt::format("is {}, but an integer is needed", shown(*given, is_secret(name))));
    return std::nullopt;
  }
  const auto number = given->get<std::int64_t>();
  if (number < min || number > max) {
    problem(name, max == std::numeric_limits<std::int64_t>::max()
                      ? fmt::format("is {}; at least {} is needed", number, min)
                      : fmt::format("is {}; {} to {} are allowed", number, min, max));
    return std::nullopt;
  }
  return number;
}

std::optional<bool> Fields::boolean(const std::string& name) {
  const Json* given = value(name);
  if (given == nullptr) return std::nullopt;
  if (given->is_boolean()) return given->get<bool>();
  problem(name, fmt::format("is {}, but true or false is needed", shown(*given, is_secret(name))));
  return std::nullopt;
}

std::optional<std::vector<std::string>> Fields::texts(const std::string& name,
                                                      std::size_t min_count, std::size_t max_count,
                                                      const TextRules& rules) {
  const Json* given = value(name);
  if (given == nullptr) return std::nullopt;
  if (!given->is_array() ||
      !std::ranges::all_of(*given, [](const Json& x) { return x.is_string(); })) {
    problem(name,
            fmt::format("is {}, but a list of texts is needed", shown(*given, is_secret(name))));
    return std::nullopt;
  }
  if (given->size() < min_count || given->size() > max_count) {
    problem(name, fmt::format("has {} entries; {} to {} are allowed", given->size(), min_count,
                              max_count));
    return std::nullopt;
  }
  std::vector<std::string> all;
  bool right = true;
  for (std::size_t i = 0; i < given->size(); ++i) {
    all.push_back((*given)[i].get<std::string>());
    right = check_text(*problems_, fmt::format("{}/{}", path(name), i), all.back(), rules) && right;
  }
  return right ? std::optional(all) : std::nullopt;
}

std::optional<std::vector<std::pair<std::string, std::string>>> Fields::dictionary(
    const std::string& name, std::size_t max_count, const TextRules& keys,
    const TextRules& values) {
  const Json* given = value(name);
  if (given == nullptr) return std::nullopt;
  const bool secret = is_secret(name) || values.secret;
  if (!given->is_object()) {
    problem(name, fmt::format("is {}, but an object is needed", shown(*given, secret)));
    return std::nullopt;
  }
  if (given->size() > max_count)
    problem(name, fmt::format("has {} entries; at most {} are allowed", given->size(), max_count));
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [key, text] : given->items()) {
    const std::string where = path(name) + "/" + escaped(key);
    if (!text.is_string()) {
      problems_->add(where, fmt::format("is {}, but a text is needed (in quotes)",
                                        shown(text, secret || is_name_of_secret(key))));
      continue;
    }
    all.emplace_back(key, text.get<std::string>());
    check_text(*problems_, where, key, keys);
    check_text(*problems_, where, all.back().second, values);
  }
  return all;
}

std::optional<Fields> Fields::object(const std::string& name, bool secret) {
  const Json* given = value(name);
  if (given == nullptr) return std::nullopt;
  return Fields(*given, path(name), *problems_, secret_ || secret);
}

void Fields::refuse(const std::string& name, std::string_view why) {
  if (has(name)) return problem(name, why);
  std::erase(known_, name);  // no suggestion names it
}

void Fields::finish() {
  for (const auto& [key, unused] : object_->items()) {
    if (key.starts_with('_') || std::ranges::find(known_, key) != known_.end()) continue;
    // Only the first problems get suggestions, which take time to compute.
    constexpr std::size_t kSuggestions = 20;
    problems_->add(path(key), "there is no such key" + (problems_->size() < kSuggestions
                                                            ? did_you_mean(key, known_)
                                                            : std::string()));
  }
}

}  // namespace shoal::sagemaker
