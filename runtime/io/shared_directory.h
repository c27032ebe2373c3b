// A directory for temporary files that the ranks of a run share on one host.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace shoal {

// The last rank to leave removes it. Ranks may be killed: each holds a shared flock(2) on the file
// `alive` in it, which the kernel gives back however a process ends. That file has a line for each
// rank that came, so a directory that all ranks of its run have left is known from one that others
// are still to join.
class SharedDirectory {
 public:
  // Makes `path`, mode 0700, or joins the ranks that are there. Throws io if that fails, or if
  // `path` is anything but a directory of this user.
  SharedDirectory(std::string path, int rank, int ranks);
  ~SharedDirectory();
  SharedDirectory(const SharedDirectory&) = delete;
  SharedDirectory& operator=(const SharedDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int lock_ = -1;
};

// Removes this user's unused shared directories in `parent` whose name begins with `prefix`. One of
// a run that was complete, or from before a reboot, goes at once; others after
// deadlines::kRanksCome without a write. An entry without SharedDirectory's `alive` file stays.
// Never throws; logs at debug.
void remove_left_directories(const std::string& parent, std::string_view prefix) noexcept;

}  // namespace shoal
