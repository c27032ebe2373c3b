#include "local_data.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/data/content_digest.h"
#include "shoal/train/data/tokenizer/sha256.h"

namespace shoal::app {
namespace {

constexpr const char* kOwnFiles = "train";  // channel of files that are in no folder

bool is_hidden(const std::string& name) {
  return name.starts_with('.') || name.find("/.") != std::string::npos;
}

[[noreturn]] void refuse(const std::string& path, const char* why, const char* remedy) {
  throw Error(ErrorCode::invalid_argument, fmt::format("--upload: {} {}", path, why), remedy);
}

// "reviews" for "data/reviews/", in the characters that need no escape in a key.
std::string plain_name(const std::string& directory) {
  std::string name = std::filesystem::path(canonical_path(directory)).filename().string();
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_') c = '-';
  return name.empty() ? "data" : name;
}

// Channels with their files, without keys.
std::vector<LocalChannel> channels_in(const std::string& directory, std::int64_t& hidden) {
  std::map<std::string, LocalChannel> channels;
  bool has_own_files = false, has_folder = false;
  for (const DirectoryEntry& entry : list_tree(directory)) {
    if (is_hidden(entry.name)) {
      hidden += entry.kind == FileKind::regular ? 1 : 0;
      continue;
    }
    if (entry.kind == FileKind::directory && entry.is_link)
      refuse(entry.path, "is a link to a directory", "give the directory itself");
    if (entry.kind == FileKind::directory) continue;
    if (entry.kind != FileKind::regular)
      refuse(entry.path, "is no file that can be uploaded",
             "remove it, or begin its name with a dot");
    const auto slash = entry.name.find('/');
    const bool is_own = slash == std::string::npos;
    const std::string name = is_own ? kOwnFiles : entry.name.substr(0, slash);
    has_own_files = has_own_files || is_own;
    has_folder = has_folder || (!is_own && name == kOwnFiles);
    LocalChannel& channel = channels[name];
    channel.name = name;
    channel.path = is_own ? directory : directory + "/" + name;
    channel.files.push_back({entry.path, is_own ? entry.name : entry.name.substr(slash + 1),
                             file_bytes(entry.path).value_or(0)});
  }
  if (has_own_files && has_folder)
    refuse(directory, "has files beside a folder train, and both would be the channel train",
           "move the files into a folder");
  if (channels.empty()) refuse(directory, "has no files", "give a directory with the job's data");
  std::vector<LocalChannel> all;
  for (auto& [name, channel] : channels) all.push_back(std::move(channel));
  return all;
}

}  // namespace

std::int64_t LocalChannel::bytes() const {
  return std::accumulate(files.begin(), files.end(), std::int64_t{0},
                         [](std::int64_t sum, const LocalFile& file) { return sum + file.bytes; });
}

LocalData find_local_data(const std::string& directory) {
  if (!is_directory(directory))
    throw Error(ErrorCode::not_found, fmt::format("--upload: there is no directory {}", directory),
                "give a directory with the job's data");
  LocalData data;
  std::int64_t hidden = 0;
  data.channels = channels_in(directory, hidden);
  if (hidden > 0)
    data.notices.push_back(
        fmt::format("--upload {}: {} hidden file{} (names that begin with a dot) {} left out",
                    directory, hidden, hidden == 1 ? "" : "s", hidden == 1 ? "is" : "are"));
  Sha256 digest;
  for (const LocalChannel& channel : data.channels)
    for (const LocalFile& file : channel.files)
      digest.add(fmt::format("{}\n{}\n{}\n", channel.name, file.name,
                             content_digest(*open_file(file.path))));
  const std::string folder =
      fmt::format("shoal-data/{}-{}", plain_name(directory), to_hex(digest.finish()).substr(0, 12));
  for (LocalChannel& channel : data.channels) channel.key = folder + "/" + channel.name + "/";
  return data;
}

}  // namespace shoal::app
