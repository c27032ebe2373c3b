#include "shoal/runtime/io/scratch_directory.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>

#include <stdlib.h>
#include <sys/stat.h>

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

// Other processes may remove the same directories at the same time.
void remove_left_behind(const std::string& parent, const std::string& name) {
  const auto old = fs::file_time_type::clock::now() - deadlines::kLeftBehind;
  for (const DirectoryEntry& entry : list_directory_if_there(parent)) {
    if (entry.name.size() != name.size() + kDrawn || !entry.name.starts_with(name) ||
        entry.is_link || entry.kind != FileKind::directory)
      continue;
    struct stat status{};
    if (::stat(entry.path.c_str(), &status) != 0 || (status.st_mode & 07777) != 0700) continue;
    const auto changed = modification_time(entry.path);
    if (changed && *changed < old) remove_tree(entry.path);
  }
}

}  // namespace

ScratchDirectory::ScratchDirectory() {
  path_ = make_below(temporary_directory(), "shoal-",
                     "set TMPDIR to a directory that can be written to");
}

ScratchDirectory::ScratchDirectory(const std::string& parent, const std::string& name) {
  try {
    make_directories(parent);
  } catch (const Error& problem) {
    refuse(problem.message(), {});
  }
  // The parent may belong to the user, so the name must be unmistakable, and only mkdtemp's mode
  // matches.
  const std::string prefix = ".shoal-" + name + "-";
  best_effort("remove temporary files that were left behind",
              [&] { remove_left_behind(parent, prefix); });
  path_ = make_below(parent, prefix, {});
}

ScratchDirectory::~ScratchDirectory() {
  best_effort("remove a directory of temporary files", [this] { remove_tree(path_); });
}

}  // namespace shoal
