#include "shoal/train/command/local_model.h"

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <regex>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"

namespace shoal::command {
namespace {

namespace fs = std::filesystem;

std::string variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

// Expands "~/cache" and "$SCRATCH/cache" like Python's expanduser() and expandvars(). Unset
// variables stay as written.
std::string expanded(const std::string& path) {
  std::string text =
      path == "~" || path.starts_with("~/") ? variable("HOME") + path.substr(1) : path;
  for (std::size_t at = text.find('$'); at != text.npos; at = text.find('$', at)) {
    const bool braced = text.substr(at + 1).starts_with('{');
    const std::size_t begin = at + (braced ? 2 : 1);
    std::size_t end = begin;
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_'))
      ++end;
    const bool closed = !braced || (end < text.size() && text[end] == '}');
    const std::string value = variable(text.substr(begin, end - begin));
    if (!closed || value.empty()) {
      at = end;
      continue;
    }
    text.replace(at, end + (braced ? 1 : 0) - at, value);
    at += value.size();
  }
  return text;
}

// models--ORG--NAME/snapshots/REVISION, for the revision in refs/main.
std::optional<std::string> in_hub_cache(const std::string& name) {
  const fs::path model(hub_folder(name));
  if (!path_exists(model / "refs/main")) return std::nullopt;
  std::string revision = read_text_file((model / "refs/main").string());
  while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back())) != 0)
    revision.pop_back();
  const fs::path snapshot = model / "snapshots" / revision;
  if (!path_exists(snapshot)) return std::nullopt;
  return snapshot.string();
}

}  // namespace

std::string hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string cache = variable(name); !cache.empty()) return expanded(cache);
  if (const std::string home = variable("HF_HOME"); !home.empty()) return expanded(home) + "/hub";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return expanded(cache) + "/huggingface/hub";
  return variable("HOME") + "/.cache/huggingface/hub";
}

std::string last_part_of(const std::string& name) { return fs::path(name).filename().string(); }

void refuse_remote(const std::string& option, const std::string& name) {
  if (is_local(name)) return;
  throw Error(ErrorCode::unavailable,
              fmt::format("{} is {}, and objects are not read", option, name),
              "copy it to a directory, or make it a channel of the job");
}

std::optional<std::string> sagemaker_channel(const std::string& name) {
  std::string upper = name;
  for (char& c : upper)
    c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  const std::string said = variable("SM_CHANNEL_" + upper);
  if (!said.empty() && path_exists(said)) return said;
  const std::string usual = "/opt/ml/input/data/" + name;
  if (!name.empty() && path_exists(usual)) return usual;
  return std::nullopt;
}

std::string local_model(const std::string& name) {
  if (name.empty() || path_exists(name)) return name;
  refuse_remote("the model", name);
  if (const auto there = sagemaker_channel(last_part_of(name))) return *there;
  if (const auto there = in_hub_cache(name)) return *there;
  return name;
}

bool is_hub_name(const std::string& name) {
  static const std::regex hub_name("[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?");
  return std::regex_match(name, hub_name);
}

std::string hub_folder(const std::string& name) {
  std::string folder = "models--";
  for (const char c : name) folder += c == '/' ? std::string("--") : std::string(1, c);
  return (fs::path(hub_cache()) / folder).string();
}

std::string how_to_get(const std::string& name) {
  if (is_hub_name(name))
    return fmt::format(
        "`hf download {}` puts it into that cache, as does `shoal train` with --allow_download",
        name);
  return "give a directory in Hugging Face's format, or a model's name after `hf download "
         "ORG/NAME`";
}

std::string not_found_anywhere(const std::string& name) {
  if (name.empty() || name[0] == '/' || name[0] == '.') return "there is no such directory";
  return fmt::format(
      "there is no such directory, no channel '{}' of SageMaker, and no main revision of it in "
      "Hugging Face's cache, {}",
      last_part_of(name), hub_folder(name));
}

}  // namespace shoal::command
