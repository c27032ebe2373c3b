#include "shoal/runtime/io/scratch_directory.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>

#include <stdlib.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDrawn = 6;  // letters, which mkdtemp fills in
constexpr auto kLeftBehind = std::chrono::hours(24);

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

void remove_left_behind(const fs::path& parent, const std::string& name) {
  const auto old = fs::file_time_type::clock::now() - kLeftBehind;
  std::error_code ignored;
  for (fs::directory_iterator it(parent, ignored), end; !ignored && it != end;
       it.increment(ignored)) {
    const std::string found = it->path().filename().string();
    std::error_code gone;  // another process does the same
    if (found.size() == name.size() + kDrawn && found.starts_with(name) && !it->is_symlink(gone) &&
        it->is_directory(gone) &&
        (it->status(gone).permissions() & fs::perms::mask) == fs::perms::owner_all &&
        it->last_write_time(gone) < old && !gone)
      fs::remove_all(it->path(), gone);
  }
}

}  // namespace

ScratchDirectory::ScratchDirectory() {
  const char* const remedy = "set TMPDIR to a directory that can be written to";
  std::error_code problem;
  const fs::path parent = fs::temp_directory_path(problem);
  if (problem) refuse(problem.message(), remedy);
  path_ = make_below(parent, "shoal-", remedy);
}

ScratchDirectory::ScratchDirectory(const std::string& parent, const std::string& name) {
  std::error_code problem;
  fs::create_directories(parent, problem);
  if (problem) refuse(parent + ": " + problem.message(), {});
  // The parent may be a directory of the user's: a name that nobody else gives, and mkdtemp's mode.
  const std::string prefix = ".shoal-" + name + "-";
  remove_left_behind(parent, prefix);
  path_ = make_below(parent, prefix, {});
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace shoal
