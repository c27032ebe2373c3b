// A private directory, removed with everything in it.
#pragma once

#include <string>

namespace shoal {

// The directory is PARENT/.shoal-NAME-xxxxxx, unique among all processes and jobs. Also removes
// this user's directories with the same NAME in PARENT that killed processes left a day ago or
// earlier. Throws io with the path if the directory cannot be created.
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
