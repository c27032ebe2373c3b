#include "shoal/runtime/io/scratch_directory.h"

#include <chrono>
#include <filesystem>
#include <fstream>

#include "support/error_text.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace shoal {
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

TEST(ScratchDirectory, IsOfOneProcessWhereverItLies) {
  const ScratchDirectory here;
  const std::string parent = here / "not/there/yet";
  std::string path;
  {
    const ScratchDirectory one(parent, "rows"), two(parent, "rows");
    EXPECT_NE(one.path(), two.path());
    EXPECT_EQ(one.path().substr(0, parent.size() + 6), parent + "/rows-");
    path = one.path();
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(parent));
  std::ofstream(here / "file") << "text";
  EXPECT_THAT(test::error_text([&] { const ScratchDirectory none(here / "file", "rows"); }),
              ::testing::HasSubstr(here / "file"));
}

// Of killed processes; not what others use now, and nothing else.
TEST(ScratchDirectory, RemovesWhatWasLeftBehind) {
  const ScratchDirectory here;
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(25);
  for (const char* name : {"rows-abcdef", "rows-ghijkl", "rows-kept", "pipe-abcdef"}) {
    std::filesystem::create_directory(here / name);
    std::ofstream(here / name + "/file") << "text";
    if (std::string(name) != "rows-ghijkl") std::filesystem::last_write_time(here / name, old);
  }
  const ScratchDirectory one(here.path(), "rows");
  EXPECT_FALSE(std::filesystem::exists(here / "rows-abcdef"));
  for (const char* name : {"rows-ghijkl", "rows-kept", "pipe-abcdef"})
    EXPECT_TRUE(std::filesystem::exists(here / name + "/file")) << name;
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
}  // namespace shoal
