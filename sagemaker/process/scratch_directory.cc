#include "shoal/sagemaker/process/scratch_directory.h"

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <stdlib.h>

#include "shoal/runtime/base/error.h"

namespace shoal::sagemaker {

namespace fs = std::filesystem;

ScratchDirectory::ScratchDirectory() {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::io, "cannot make a directory for temporary files: " + why,
                "set TMPDIR to a directory that can be written to");
  };
  std::error_code problem;
  const fs::path parent = fs::temp_directory_path(problem);
  if (problem) refuse(problem.message());
  // mkdtemp fills in what its pattern's last six letters are to be.
  std::string pattern = (parent / "shoal-").string() + std::string(6, 'X');
  if (::mkdtemp(pattern.data()) == nullptr)
    refuse(parent.string() + ": " + std::generic_category().message(errno));
  path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace shoal::sagemaker
