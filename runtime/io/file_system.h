// The file system, with no error dropped. Only "does not exist" counts as absent: every other
// failure (EIO, EACCES, ESTALE, ELOOP, ...) throws Error(io) with the path and the reason. The rest
// of the tree calls these instead of std::filesystem with an error_code; tools/check_rules enforces
// it.
//
//   for (const DirectoryEntry& entry : list_directory_if_there(output_dir))
//     if (entry.kind == FileKind::directory) ...
//   if (!path_exists(marker)) return "it has no marker";
//   best_effort("remove a temporary directory", [&] { remove_tree(temporary); });
//
// All calls block on the file system and follow symbolic links, except that removal removes the
// link itself. Thread-safe as far as the file system is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

enum class FileKind : std::uint8_t { absent, regular, directory, other };

// Absent: no such path, a parent that is not a directory, or a dangling link.
FileKind file_kind(const std::string& path);
bool path_exists(const std::string& path);
bool is_directory(const std::string& path);
bool is_regular_file(const std::string& path);
// Bytes of a regular file; nullopt if absent; invalid_argument if it is something else.
std::optional<std::int64_t> file_bytes(const std::string& path);
// Time of the last change, or nullopt if absent.
std::optional<std::filesystem::file_time_type> modification_time(const std::string& path);

struct DirectoryEntry {
  std::string name;  // within the directory that was listed: "a" or, from list_tree, "a/b"
  std::string path;  // the listed directory + "/" + name
  FileKind kind = FileKind::absent;  // absent: a dangling link, or removed since it was listed
  bool is_link = false;              // `kind` is what the link leads to
};

// Names to list. Other entries are not looked at, so an unrelated one cannot fail the call. Null:
// every name.
using NameFilter = std::function<bool(std::string_view)>;

// Sorted by name. list_directory: not_found if the directory is absent. The other: empty then.
std::vector<DirectoryEntry> list_directory(const std::string& directory);
std::vector<DirectoryEntry> list_directory_if_there(const std::string& directory,
                                                    const NameFilter& wanted = nullptr);
// Everything below `directory`, parents before their children, sorted by name. Links to directories
// are listed and not entered. not_found if the directory is absent.
std::vector<DirectoryEntry> list_tree(const std::string& directory);

// `remedy`: what the user can do where it fails. invalid_argument for a name with "scheme://".
void make_directories(const std::string& path, std::string remedy = {});
// The reason alone, for a caller with its own sentence; nullopt: the directory is there.
std::optional<std::string> reason_not_made(const std::string& path);
// Returns whether there was something to remove. remove_file: a file, link or empty directory.
bool remove_file(const std::string& path);
bool remove_tree(const std::string& path);
// Without a sync; rename_and_sync (files.h) survives a crash.
void rename_path(const std::string& from, const std::string& to);
// The bytes of a file without a sync, as a probe or a temporary file needs; what lasts goes through
// write_file_atomically (files.h). An older file is overwritten.
void write_file(const std::string& path, std::string_view bytes);
// A regular file's bytes; `to` is replaced.
void copy_file(const std::string& from, const std::string& to);
// Both are there, and are one file or directory.
bool is_same_file(const std::string& a, const std::string& b);
// Links resolved as far as the path exists; the rest made absolute and normal.
std::string canonical_path(const std::string& path);
// Where temporary files go: TMPDIR, or /tmp.
std::string temporary_directory();
// Bytes that an unprivileged process can still write on the file system that holds `path`.
std::int64_t free_bytes(const std::string& path);

// For destructors and clean-up whose failure must not hide the first error: runs `action`, and logs
// a warning "cannot <what>: <reason>" if it throws. Never throws.
void best_effort(std::string_view what, const std::function<void()>& action) noexcept;

}  // namespace shoal
