#include "shoal/runtime/io/file_system.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/io/shown_path.h"

namespace shoal {
namespace fs = std::filesystem;
namespace {

bool says_absent(const std::error_code& error) {
  return error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
}

void check(const std::error_code& error, std::string_view step, const std::string& path) {
  if (error)
    throw_error(ErrorCode::io, "cannot {} {}: {}", step, shown_path(path), error.message());
}

FileKind kind_of(const fs::file_status& status) {
  switch (status.type()) {
    case fs::file_type::not_found:
      return FileKind::absent;
    case fs::file_type::regular:
      return FileKind::regular;
    case fs::file_type::directory:
      return FileKind::directory;
    default:
      return FileKind::other;
  }
}

// Reads one level, unsorted. False if the directory is absent.
bool read_directory(const std::string& directory, std::vector<DirectoryEntry>& entries,
                    const NameFilter& wanted = nullptr) {
  std::error_code error;
  fs::directory_iterator it(directory, error);
  if (says_absent(error) && file_kind(directory) == FileKind::absent) return false;
  check(error, "list the directory", directory);
  for (const fs::directory_iterator end; it != end;) {
    std::string path = it->path().string(), name = it->path().filename().string();
    if (!wanted || wanted(name)) {
      const FileKind kind = file_kind(path);
      const bool link = it->is_symlink(error);
      if (!says_absent(error)) check(error, "look at", path);
      entries.push_back({std::move(name), std::move(path), kind, link});
    }
    it.increment(error);
    check(error, "list the directory", directory);
  }
  return true;
}

void sort_by_name(std::vector<DirectoryEntry>& entries) {
  std::ranges::sort(entries, {}, &DirectoryEntry::name);
}

void add_below(const std::string& directory, const std::string& prefix,
               std::vector<DirectoryEntry>& all) {
  std::vector<DirectoryEntry> level;
  if (!read_directory(directory, level)) return;  // removed while its parent was listed
  sort_by_name(level);
  for (DirectoryEntry& entry : level) {
    const std::string path = entry.path, name = prefix + entry.name;
    const bool enter = entry.kind == FileKind::directory && !entry.is_link;
    entry.name = name;
    all.push_back(std::move(entry));
    if (enter) add_below(path, name + "/", all);
  }
}

}  // namespace

FileKind file_kind(const std::string& path) {
  progress::made();
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (says_absent(error) || status.type() == fs::file_type::not_found) return FileKind::absent;
  check(error, "look at", path);
  return kind_of(status);
}

bool path_exists(const std::string& path) { return file_kind(path) != FileKind::absent; }
bool is_directory(const std::string& path) { return file_kind(path) == FileKind::directory; }
bool is_regular_file(const std::string& path) { return file_kind(path) == FileKind::regular; }

std::optional<std::string> link_target(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::read_symlink(path, error);
  if (says_absent(error) || error == std::errc::invalid_argument) return std::nullopt;
  check(error, "look at", path);
  return target.string();
}

std::optional<std::int64_t> file_bytes(const std::string& path) {
  const FileKind kind = file_kind(path);
  if (kind == FileKind::absent) return std::nullopt;
  SHOAL_CHECK(kind == FileKind::regular, "{} is not a regular file", shown_path(path));
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (says_absent(error)) return std::nullopt;
  check(error, "look at", path);
  return static_cast<std::int64_t>(bytes);
}

std::optional<fs::file_time_type> modification_time(const std::string& path) {
  std::error_code error;
  const auto time = fs::last_write_time(path, error);
  if (says_absent(error)) return std::nullopt;
  check(error, "look at", path);
  return time;
}

std::vector<DirectoryEntry> list_directory(const std::string& directory) {
  std::vector<DirectoryEntry> entries;
  if (!read_directory(directory, entries))
    throw_error(ErrorCode::not_found, "there is no directory {}", shown_path(directory));
  sort_by_name(entries);
  return entries;
}

std::vector<DirectoryEntry> list_directory_if_there(const std::string& directory,
                                                    const NameFilter& wanted) {
  std::vector<DirectoryEntry> entries;
  read_directory(directory, entries, wanted);
  sort_by_name(entries);
  return entries;
}

std::vector<std::string> names_in_if_there(const std::string& directory, const NameFilter& wanted) {
  std::vector<std::string> names;
  std::vector<DirectoryEntry> none;
  read_directory(directory, none, [&](std::string_view name) {
    if (wanted(name)) names.emplace_back(name);
    return false;
  });
  std::ranges::sort(names);
  return names;
}

std::vector<DirectoryEntry> list_tree(const std::string& directory) {
  if (!path_exists(directory))
    throw_error(ErrorCode::not_found, "there is no directory {}", shown_path(directory));
  std::vector<DirectoryEntry> all;
  add_below(directory, "", all);
  return all;
}

std::optional<std::string> reason_not_made(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? std::optional(error.message()) : std::nullopt;
}

void make_directories(const std::string& path, std::string remedy) {
  if (path.find("://") != path.npos)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("cannot make the directory {}: it is not on this machine", shown_path(path)),
        "give a local directory, and copy it there afterwards");
  if (const auto reason = reason_not_made(path))
    throw Error(ErrorCode::io,
                fmt::format("cannot make the directory {}: {}", shown_path(path), *reason),
                std::move(remedy));
}

bool remove_file(const std::string& path) {
  std::error_code error;
  const bool removed = fs::remove(path, error);
  if (says_absent(error)) return false;
  check(error, "remove", path);
  return removed;
}

bool remove_tree(const std::string& path) {
  std::error_code error;
  const auto removed = fs::remove_all(path, error);
  if (says_absent(error)) return false;
  check(error, "remove", path);
  return removed > 0;
}

void rename_path(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error)
    throw_error(ErrorCode::io, "cannot rename {} to {}: {}", shown_path(from), shown_path(to),
                error.message());
}

void write_file(const std::string& path, std::string_view bytes) {
  errno = 0;
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  file.close();
  if (!file)
    throw_error(ErrorCode::io, "cannot write {}: {}", shown_path(path),
                std::generic_category().message(errno != 0 ? errno : EIO));
}

void copy_file(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  if (error)
    throw_error(ErrorCode::io, "cannot copy {} to {}: {}", shown_path(from), shown_path(to),
                error.message());
}

bool is_same_file(const std::string& a, const std::string& b) {
  if (!path_exists(a) || !path_exists(b)) return false;
  std::error_code error;
  const bool same = fs::equivalent(a, b, error);
  if (says_absent(error)) return false;
  if (error)
    throw_error(ErrorCode::io, "cannot compare {} with {}: {}", shown_path(a), shown_path(b),
                error.message());
  return same;
}

std::string canonical_path(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(fs::absolute(path), error);
  check(error, "resolve", path);
  return canonical.string();
}

std::string temporary_directory() {
  std::error_code error;
  const fs::path directory = fs::temp_directory_path(error);
  if (error)
    throw Error(ErrorCode::io,
                fmt::format("cannot make a directory for temporary files: {}", error.message()),
                "set TMPDIR to a directory that can be written to");
  return directory.string();
}

std::int64_t free_bytes(const std::string& path) {
  std::error_code error;
  const auto space = fs::space(path, error);
  check(error, "ask for the free space at", path);
  return static_cast<std::int64_t>(space.available);
}

void best_effort(std::string_view what, const std::function<void()>& action) noexcept {
  try {
    action();
  } catch (const std::exception& problem) {
    log::warn("cannot {}: {}", what, problem.what());
  }
}

}  // namespace shoal
