#include "shoal/runtime/io/scratch_directory.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDrawn = 6;  // random letters, filled in by mkdtemp

[[noreturn]] void refuse(const std::string& why, std::string remedy) {
  throw Error(ErrorCode::io, "cannot make a directory for temporary files: " + why,
              std::move(remedy));
}

std::string make_below(const fs::path& parent, const std::string& name, const std::string& remedy) {
  std::string pattern = (parent / name).string() + std::string(kDrawn, 'X');
  if (::mkdtemp(pattern.data()) == nullptr)
    refuse(parent.string() + ": " + std::generic_category().message(errno), remedy);
  return pattern;
}

// Removes old directories of killed processes, except other users'. Other processes may remove the
// same ones at the same time.
void remove_left_behind(const std::string& parent, const std::string& name) {
  const auto old = fs::file_time_type::clock::now() - deadlines::kLeftBehind;
  const auto is_named_so = [&](std::string_view entry) {
    return entry.size() == name.size() + kDrawn && entry.starts_with(name);
  };
  for (const std::string& entry : names_in_if_there(parent, is_named_so)) {
    const std::string path = parent + "/" + entry;
    struct stat status{};
    if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
        (status.st_mode & 07777) != 0700 || status.st_uid != ::geteuid())
      continue;
    const auto changed = modification_time(path);
    if (changed && *changed < old) remove_tree(path);
  }
}

// The parent may be one of the user's own directories. So only this class uses such names, and
// mkdtemp() makes the directory private.
std::string make_anew(const std::string& parent, const std::string& name,
                      const std::string& remedy) {
  const std::string prefix = ".shoal-" + name + "-";
  best_effort("remove temporary files that were left behind",
              [&] { remove_left_behind(parent, prefix); });
  return make_below(parent, prefix, remedy);
}

}  // namespace

ScratchDirectory::ScratchDirectory()
    : path_(make_anew(temporary_directory(), "files",
                      "set TMPDIR to a directory that can be written to")) {}

ScratchDirectory::ScratchDirectory(const std::string& parent, const std::string& name) {
  try {
    make_directories(parent);
  } catch (const Error& problem) {
    refuse(problem.message(), {});
  }
  path_ = make_anew(parent, name, {});
}

ScratchDirectory::~ScratchDirectory() {
  best_effort("remove a directory of temporary files", [this] { remove_tree(path_); });
}

}  // namespace shoal
