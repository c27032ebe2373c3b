// The file system, with no error ignored. A path counts as absent only if it does not exist. Every
// other failure (EIO, EACCES, ESTALE, ELOOP, ...) throws io with the path and the reason. All of
// Shoal calls these functions instead of std::filesystem with an error_code; tools/check_rules
// enforces it.
//
//   for (const DirectoryEntry& entry : list_directory_if_there(output_dir))
//     if (entry.kind == FileKind::directory) ...
//   if (!path_exists(marker)) return "it has no marker";
//   best_effort("remove a temporary directory", [&] { remove_tree(temporary); });
//
// All calls block on the file system and follow symbolic links, but removal removes the link
// itself. Thread-safe as far as the file system is.
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
// If `path` is a symbolic link, dangling or not, returns its text; otherwise nullopt.
std::optional<std::string> link_target(const std::string& path);
// Bytes of a regular file; nullopt if absent; throws invalid_argument for anything else.
std::optional<std::int64_t> file_bytes(const std::string& path);
// Time of the last change; nullopt if absent.
std::optional<std::filesystem::file_time_type> modification_time(const std::string& path);

struct DirectoryEntry {
  std::string name;  // within the directory that was listed: "a" or, from list_tree, "a/b"
  std::string path;  // the listed directory + "/" + name
  FileKind kind = FileKind::absent;  // absent: a dangling link, or removed during the listing
  bool is_link = false;              // `kind` is that of the link's target
};

// Selects the names to list. Other entries are not examined, so they cannot fail the call. Null:
// every name.
using NameFilter = std::function<bool(std::string_view)>;

// Sorted by name. If the directory is absent, list_directory throws not_found and
// list_directory_if_there returns an empty list.
std::vector<DirectoryEntry> list_directory(const std::string& directory);
std::vector<DirectoryEntry> list_directory_if_there(const std::string& directory,
                                                    const NameFilter& wanted = nullptr);
// Returns names only. It does not examine entries, so none can fail the call.
std::vector<std::string> names_in_if_there(const std::string& directory, const NameFilter& wanted);
// Everything below `directory`, parents before their children, sorted by name. Links to directories
// are listed but not entered. Throws not_found if the directory is absent.
std::vector<DirectoryEntry> list_tree(const std::string& directory);

// `remedy`: how to solve a failure. Throws invalid_argument for a name with "scheme://".
void make_directories(const std::string& path, std::string remedy = {});
// Like make_directories(), but returns the reason of a failure, for callers with their own message.
// nullopt: the directory exists.
std::optional<std::string> reason_not_made(const std::string& path);
// Returns true if there was something to remove. remove_file: a file, link or empty directory.
bool remove_file(const std::string& path);
bool remove_tree(const std::string& path);
// Does not sync; rename_and_sync (files.h) survives a crash.
void rename_path(const std::string& from, const std::string& to);
// Writes a file without a sync, for probes and temporary files; an existing file is overwritten.
// Use write_file_atomically (files.h) for files that must last.
void write_file(const std::string& path, std::string_view bytes);
// Copies a regular file; `to` is replaced.
void copy_file(const std::string& from, const std::string& to);
// True if both exist and are the same file or directory.
bool is_same_file(const std::string& a, const std::string& b);
// Resolves links as far as the path exists; the rest is made absolute and normal.
std::string canonical_path(const std::string& path);
// Directory for temporary files: TMPDIR, or /tmp.
std::string temporary_directory();
// Bytes that an unprivileged process can still write to the file system that holds `path`.
std::int64_t free_bytes(const std::string& path);

// For destructors and clean-up, whose failure must not hide the first error. Runs `action`; if it
// throws, logs the warning "cannot <what>: <reason>". Never throws.
void best_effort(std::string_view what, const std::function<void()>& action) noexcept;

}  // namespace shoal
