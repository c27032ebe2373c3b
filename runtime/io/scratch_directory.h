// A private directory, removed with everything in it.
#pragma once

#include <string>

namespace shoal {

// PARENT/.shoal-NAME-xxxxxx; unique among all processes and jobs. Directories of this user and NAME
// that killed processes left in PARENT are removed once they are a day old. Throws io with the path
// if it cannot be made.
class ScratchDirectory {
 public:
  ScratchDirectory();  // "files", in the temporary directory (TMPDIR)
  // Creates PARENT if it is missing.
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
