// Absence is distinguished from errors, and no error is dropped.
#include "shoal/runtime/io/file_system.h"

#include <filesystem>
#include <fstream>

#include "support/error_text.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::error_text;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

std::vector<std::string> names(const std::vector<DirectoryEntry>& entries) {
  std::vector<std::string> all;
  for (const DirectoryEntry& entry : entries) all.push_back(entry.name);
  return all;
}

void touch(const std::string& path) { std::ofstream(path) << "text"; }

// A long path is of no use to a reader, and a line break in it would split the message.
TEST(FileSystem, LongPathsAreShortened) {
  const std::string path = "/" + std::string(20000, 'a') + "\n";
  for (const std::string& text :
       {error_text([&] { file_kind(path); }), error_text([&] { list_directory(path); }),
        error_text([&] { make_directories(path); }), error_text([&] { write_file(path, ""); }),
        error_text([&] { rename_path(path, path); }), error_text([&] { copy_file(path, path); }),
        error_text([&] { read_text_file(path); }), error_text([&] { MappedFile::open(path); })}) {
    EXPECT_THAT(text, HasSubstr("File name too long"));
    EXPECT_LT(text.size(), 2500U);
  }
  EXPECT_THAT(error_text([&] { list_directory("/no\nwhere"); }), HasSubstr("/no\\nwhere"));
}

TEST(FileSystem, KindsAreDistinguished) {
  const TemporaryDirectory directory;
  touch(directory / "file");
  fs::create_symlink(directory / "nowhere", directory / "dangling");
  EXPECT_EQ(file_kind(directory / "file"), FileKind::regular);
  EXPECT_EQ(file_kind(directory.path()), FileKind::directory);
  EXPECT_EQ(file_kind("/dev/null"), FileKind::other);
  EXPECT_EQ(file_kind(directory / "absent"), FileKind::absent);
  EXPECT_EQ(file_kind(directory / "file/below"), FileKind::absent);
  EXPECT_EQ(file_kind(directory / "dangling"), FileKind::absent);
  EXPECT_EQ(file_bytes(directory / "file"), 4);
  EXPECT_EQ(file_bytes(directory / "absent"), std::nullopt);
  EXPECT_THAT(error_text([&] { file_bytes(directory.path()); }), HasSubstr("not a regular file"));
}

TEST(FileSystem, WritesCopiesAndCompares) {
  const TemporaryDirectory directory;
  write_file(directory / "a", "one");
  write_file(directory / "a", "two");
  copy_file(directory / "a", directory / "b");
  EXPECT_EQ(file_bytes(directory / "b"), 3);
  fs::create_symlink("a", directory / "link");
  EXPECT_TRUE(is_same_file(directory / "a", directory / "link"));
  EXPECT_FALSE(is_same_file(directory / "a", directory / "b"));
  EXPECT_FALSE(is_same_file(directory / "a", directory / "absent"));
  EXPECT_TRUE(list_directory(directory.path()).back().is_link);
  EXPECT_THAT(error_text([&] { write_file(directory / "absent/c", "text"); }),
              HasSubstr("cannot write " + directory / "absent/c: No such file"));
  EXPECT_THAT(error_text([] { write_file("/dev/full", "text"); }), HasSubstr("No space left"));
  EXPECT_THAT(error_text([&] { copy_file(directory / "absent", directory / "c"); }),
              HasSubstr("No such file"));
}

// A loop of links fails with ELOOP for every user, including root.
TEST(FileSystem, AnErrorIsNotMistakenForAbsence) {
  const TemporaryDirectory directory;
  const std::string loop = directory / "loop";
  fs::create_symlink(loop, loop);
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { (void)file_kind(loop); }, [&] { (void)path_exists(loop); },
           [&] { (void)is_directory(loop); }, [&] { (void)file_bytes(loop); },
           [&] { (void)list_directory(loop); }, [&] { (void)list_directory_if_there(loop); },
           [&] { (void)list_tree(loop); }, [&] { (void)modification_time(loop); }})
    EXPECT_THAT(error_text(call), HasSubstr(loop));
  EXPECT_THAT(error_text([&] { make_directories(loop + "/below"); }), HasSubstr("cannot make"));
  EXPECT_TRUE(remove_file(loop));  // removes the link itself
}

TEST(FileSystem, ListsByNameAndIsEmptyOnlyIfAbsent) {
  const TemporaryDirectory directory;
  make_directories(directory / "b/c");
  touch(directory / "b/c/file");
  touch(directory / "a");
  fs::create_directory_symlink(directory.path(), directory / "b/up");
  EXPECT_THAT(names(list_directory(directory.path())), ElementsAre("a", "b"));
  EXPECT_THAT(names(list_tree(directory.path())), ElementsAre("a", "b", "b/c", "b/c/file", "b/up"));
  EXPECT_TRUE(list_directory_if_there(directory / "absent").empty());
  EXPECT_THAT(error_text([&] { list_directory(directory / "absent"); }),
              HasSubstr("there is no directory"));
  EXPECT_THAT(error_text([&] { list_directory_if_there(directory / "a"); }),
              HasSubstr("cannot list"));
}

TEST(FileSystem, NamesAreListedWithoutInspectingEntries) {
  const TemporaryDirectory directory;
  touch(directory / "b");
  touch(directory / "other");
  fs::create_symlink(directory / "a-loop", directory / "a-loop");
  const auto wanted = [](std::string_view name) { return name != "other"; };
  EXPECT_THAT(names_in_if_there(directory.path(), wanted), ElementsAre("a-loop", "b"));
  EXPECT_TRUE(names_in_if_there(directory / "absent", wanted).empty());
  EXPECT_THAT(error_text([&] { names_in_if_there(directory / "b", wanted); }),
              HasSubstr("cannot list"));
}

TEST(FileSystem, RemovalReportsWhetherSomethingExisted) {
  const TemporaryDirectory directory;
  make_directories(directory / "a/b");
  EXPECT_THAT(error_text([&] { remove_file(directory / "a"); }), HasSubstr("cannot remove"));
  EXPECT_TRUE(remove_tree(directory / "a"));
  EXPECT_FALSE(remove_tree(directory / "a"));
  EXPECT_FALSE(remove_file(directory / "a"));
}

TEST(FileSystem, BestEffortNeverThrows) {
  bool reached = false;
  best_effort("try this", [&] {
    reached = true;
    throw_error(ErrorCode::io, "no");
  });
  EXPECT_TRUE(reached);
}

}  // namespace
}  // namespace shoal
