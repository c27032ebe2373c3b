// A directory of one's own among the temporary ones (TMPDIR), removed with everything in it.
#pragma once

#include <string>

namespace shoal::sagemaker {

class ScratchDirectory {
 public:
  ScratchDirectory();  // io, naming the place, where none can be made
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace shoal::sagemaker
