// A directory for temporary files that the ranks of a run share on one host.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace shoal {

// The last rank to leave removes the directory. Since ranks may be killed, each holds a shared
// flock(2) on the file `alive` in the directory, which the kernel releases however the process
// ends. `alive` has a line for each rank that has joined. It shows whether all ranks of the run
// have left the directory or some have yet to join.
class SharedDirectory {
 public:
  // Creates `path` with mode 0700, or joins the ranks that use it. Throws io if that fails, or if
  // `path` is not a directory of this user.
  SharedDirectory(std::string path, int rank, int ranks);
  ~SharedDirectory();
  SharedDirectory(const SharedDirectory&) = delete;
  SharedDirectory& operator=(const SharedDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;
};

// Removes this user's unused shared directories in `parent` whose names begin with `prefix`. If all
// ranks of the run had joined, or the host was rebooted since, the directory is removed at once.
// Otherwise it is removed once it is unchanged for deadlines::kRanksCome. An entry without
// SharedDirectory's `alive` file stays. Never throws; logs failures at level debug.
void remove_left_directories(const std::string& parent, std::string_view prefix) noexcept;

}  // namespace shoal
