// A private directory, removed with everything in it.
#pragma once

#include <string>

namespace shoal {

// Its name is unique among all processes and jobs. Throws io with the path if it cannot be made.
class ScratchDirectory {
 public:
  ScratchDirectory();  // in the temporary directory (TMPDIR)
  // Creates PARENT/.shoal-NAME-xxxxxx, and PARENT if it is missing. Removes directories of this
  // NAME that killed processes left there, once they are a day old.
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
