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

TEST(ScratchDirectory, IsRemovedWithItsContent) {
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

TEST(ScratchDirectory, BelongsToOneProcessInAnyParent) {
  const ScratchDirectory here;
  const std::string parent = here / "not/there/yet";
  std::string path;
  {
    const ScratchDirectory one(parent, "rows"), two(parent, "rows");
    EXPECT_NE(one.path(), two.path());
    EXPECT_EQ(one.path().substr(0, parent.size() + 13), parent + "/.shoal-rows-");
    path = one.path();
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(std::filesystem::exists(parent));
  std::ofstream(here / "file") << "text";
  EXPECT_THAT(test::error_text([&] { const ScratchDirectory none(here / "file", "rows"); }),
              ::testing::HasSubstr(here / "file"));
}

// Removes directories of killed processes, but none in use and no other directory.
TEST(ScratchDirectory, RemovesLeftovers) {
  const ScratchDirectory here;
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(25);
  const std::string dead = ".shoal-rows-abcdef", used = ".shoal-rows-ghijkl",
                    theirs = ".shoal-rows-mnopqr";
  for (const std::string& name :
       {dead, used, theirs, std::string(".shoal-rows-kept"), std::string(".shoal-pipe-abcdef"),
        std::string("rows-export"), std::string("rows-abcdef")}) {
    std::filesystem::create_directory(here / name);
    std::ofstream(here / name + "/file") << "text";
    using std::filesystem::perms;
    std::filesystem::permissions(
        here / name, name == theirs ? perms::owner_all | perms::group_read : perms::owner_all);
    if (name != used) std::filesystem::last_write_time(here / name, old);
  }
  const ScratchDirectory one(here.path(), "rows");
  EXPECT_FALSE(std::filesystem::exists(here / dead));
  for (const std::string& name :
       {used, theirs, std::string(".shoal-rows-kept"), std::string(".shoal-pipe-abcdef"),
        std::string("rows-export"), std::string("rows-abcdef")})
    EXPECT_TRUE(std::filesystem::exists(here / name + "/file")) << name;
}

TEST(ScratchDirectory, ReportsWhereNoneCanBeMade) {
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
