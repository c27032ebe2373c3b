#include "shoal/sagemaker/process/scratch_directory.h"

#include <filesystem>
#include <fstream>

#include "support/error_text.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace shoal::sagemaker {
namespace {

TEST(ScratchDirectory, IsRemovedWithWhatIsInIt) {
  std::string path;
  {
    const ScratchDirectory one, two;
    EXPECT_NE(one.path(), two.path());
    path = one.path();
    std::filesystem::create_directory(one / "folder");
    std::ofstream(one / "folder/file") << "text";
    EXPECT_TRUE(std::filesystem::exists(path + "/folder/file"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(ScratchDirectory, SaysWhereNoneCanBeMade) {
  const ScratchDirectory here;
  const char* before = ::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe)
  const std::string saved = before == nullptr ? "" : before;
  ::setenv("TMPDIR", (here / "gone").c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  const std::string said = test::error_text([] { const ScratchDirectory none; });
  if (before == nullptr)
    ::unsetenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe)
  else
    ::setenv("TMPDIR", saved.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  EXPECT_THAT(said, ::testing::HasSubstr("cannot make a directory for temporary files: "));
  EXPECT_THAT(said, ::testing::HasSubstr("set TMPDIR"));
}

}  // namespace
}  // namespace shoal::sagemaker
