#include "shoal/sagemaker/rest/profile.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/sagemaker/rest/encode.h"

namespace shoal::sagemaker {
namespace {

using Sections = std::map<std::string, Section, std::less<>>;

// Removes a comment, which begins after a blank: "value # why".
std::string_view without_comment(std::string_view value) {
  for (std::size_t i = 1; i < value.size(); ++i)
    if ((value[i] == '#' || value[i] == ';') && (value[i - 1] == ' ' || value[i - 1] == '\t'))
      return trim(value.substr(0, i));
  return trim(value);
}

// Normalises a header: "[profile  dev]" and "[profile "dev"]" become "profile dev".
std::string header_of(std::string_view line) {
  std::string header;
  for (const char c : trim(line.substr(1, line.find(']') - 1)))
    if ((c != ' ' && c != '\t') || !header.ends_with(' ')) header += c == '\t' ? ' ' : c;
  const std::size_t quote = header.find(' ') + 1;
  for (const char mark : {'"', '\''})
    if (quote > 0 && header.size() > quote + 1 && header[quote] == mark && header.back() == mark)
      return header.substr(0, quote) + header.substr(quote + 1, header.size() - quote - 2);
  return header;
}

Sections read_sections(const std::string& path) {
  if (path.empty() || !path_exists(path)) return {};
  return parse_sections(read_text_file(path, 16 << 20), path);
}

std::string file_named(const Environment& environment, std::string_view variable,
                       std::string_view name) {
  const auto home = environment("HOME");
  if (auto path = environment(variable)) {
    if (path->starts_with("~/") && home) return *home + path->substr(1);
    return *path;
  }
  return home ? *home + "/.aws/" + std::string(name) : "";
}

const std::string* value_of(const Section* section, std::string_view key) {
  if (section == nullptr) return nullptr;
  const auto found = section->find(key);
  return found == section->end() ? nullptr : &found->second;
}

const Section* section_of(const Sections& sections, std::string_view name) {
  const auto found = sections.find(name);
  return found == sections.end() ? nullptr : &found->second;
}

}  // namespace

Sections parse_sections(std::string_view text, std::string_view name) {
  Sections sections;
  Section* section = nullptr;
  std::string key;  // last key, for indented lines below it
  int number = 0;
  while (!text.empty()) {
    ++number;
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view bare = trim(line);
    if (bare.empty() || bare.front() == '#' || bare.front() == ';') continue;
    const bool indented = line.front() == ' ' || line.front() == '\t';
    const std::size_t equals = bare.find('=');
    if (bare.front() == '[' && !indented) {
      if (bare.find(']') == bare.npos)
        throw_error(ErrorCode::corrupt_data, "{}: line {}: a section's '[' has no ']'", name,
                    number);
      section = &sections[header_of(bare)];
      key.clear();
      continue;
    }
    if (section == nullptr)
      throw_error(ErrorCode::corrupt_data, "{}: line {} stands before any [section]", name, number);
    if (indented && !key.empty()) {
      if (!(*section)[key].empty() || equals == bare.npos)
        ((*section)[key] += "\n") += bare;
      else
        (*section)[key + "." + lower(trim(bare.substr(0, equals)))] =
            without_comment(bare.substr(equals + 1));
      continue;
    }
    if (equals == bare.npos || trim(bare.substr(0, equals)).empty())
      throw_error(ErrorCode::corrupt_data, "{}: line {} is not KEY = VALUE", name, number);
    key = lower(trim(bare.substr(0, equals)));
    if (constexpr std::size_t kLongestKey = 256; key.size() > kLongestKey)
      throw_error(ErrorCode::corrupt_data, "{}: line {}: a key of {} bytes; {} are possible", name,
                  number, key.size(), kLongestKey);
    (*section)[key] = without_comment(bare.substr(equals + 1));
  }
  return sections;
}

SharedConfig SharedConfig::load(const Environment& environment) {
  SharedConfig shared;
  shared.config_ = read_sections(file_named(environment, "AWS_CONFIG_FILE", "config"));
  shared.credentials_ =
      read_sections(file_named(environment, "AWS_SHARED_CREDENTIALS_FILE", "credentials"));
  return shared;
}

const Section* SharedConfig::config_section(std::string_view profile) const {
  if (const Section* named = section_of(config_, "profile " + std::string(profile))) return named;
  return profile == "default" ? section_of(config_, profile) : nullptr;
}

bool SharedConfig::has_profile(std::string_view profile) const {
  return config_section(profile) != nullptr || section_of(credentials_, profile) != nullptr;
}

std::optional<std::string> SharedConfig::get(std::string_view profile, std::string_view key) const {
  for (const Section* section : {section_of(credentials_, profile), config_section(profile)})
    if (const std::string* value = value_of(section, key); value != nullptr && !value->empty())
      return *value;
  return std::nullopt;
}

std::optional<std::string> SharedConfig::get_beside(std::string_view profile,
                                                    std::string_view beside,
                                                    std::string_view key) const {
  for (const Section* section : {section_of(credentials_, profile), config_section(profile)}) {
    if (const std::string* anchor = value_of(section, beside); anchor == nullptr || anchor->empty())
      continue;
    const std::string* value = value_of(section, key);
    return value != nullptr ? std::optional(*value) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<std::string> SharedConfig::service_endpoint(std::string_view profile,
                                                          std::string_view service) const {
  const auto services = get(profile, "services");
  if (!services) return std::nullopt;
  const Section* section = section_of(config_, "services " + *services);
  const std::string* url = value_of(section, std::string(service) + ".endpoint_url");
  return url != nullptr ? std::optional(*url) : std::nullopt;
}

std::string profile_name(const std::optional<std::string>& given, const Environment& environment) {
  if (given) return *given;
  if (auto name = environment("AWS_PROFILE")) return *name;
  return environment("AWS_DEFAULT_PROFILE").value_or("default");
}

}  // namespace shoal::sagemaker
