// A directory of one's own, removed with everything in it.
#pragma once

#include <string>

namespace shoal {

// By a name that no other process and no other job has. io, naming the place, where none can be
// made.
class ScratchDirectory {
 public:
  ScratchDirectory();  // among the temporary ones (TMPDIR)
  // PARENT/NAME-xxxxxx; PARENT is made where it is missing. What killed processes left there by
  // this NAME is removed once it is a day old.
  ScratchDirectory(const std::string& parent, const std::string& name);
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace shoal
