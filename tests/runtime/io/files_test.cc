// Byte sources, mapped files, atomic replacement, strict JSON.
#include "shoal/runtime/io/files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/mapped_faults.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    directory = ::testing::TempDir() + "/files-" + std::to_string(::getpid());
    fs::remove_all(directory);
    fs::create_directories(directory);
    path = directory + "/file";
  }
  void TearDown() override { fs::remove_all(directory); }
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
  }
  std::string directory, path;
};

template <typename Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::internal, "nothing was thrown"};
}

TEST_F(Files, SourcesReadRangesExactly) {
  std::ofstream(path) << "0123456789";
  for (const auto& source : {open_file(path), make_memory_source("0123456789", "memory")}) {
    EXPECT_EQ(source->size(), 10);
    std::string part(4, '?');
    source->read(3, std::as_writable_bytes(std::span(part)));
    EXPECT_EQ(part, "3456");
    source->read(6, std::as_writable_bytes(std::span(part)));
    EXPECT_EQ(part, "6789");
    source->read(10, {});
    for (const std::int64_t offset :
         {std::int64_t{7}, std::int64_t{11}, std::int64_t{-1}, std::int64_t{INT64_MAX}})
      EXPECT_EQ(
          error_of([&] { source->read(offset, std::as_writable_bytes(std::span(part))); }).code(),
          ErrorCode::corrupt_data)
          << source->name() << " at " << offset;
    EXPECT_EQ(read_all(*source), "0123456789");
    EXPECT_EQ(error_of([&] { (void)read_all(*source, 9); }).code(), ErrorCode::io);
  }
}

TEST_F(Files, AShrinkingFileIsDetected) {
  std::ofstream(path) << "0123456789";
  const auto source = open_file(path);
  fs::resize_file(path, 4);
  EXPECT_THAT(error_of([&] { (void)read_all(*source); }).what(), HasSubstr("became shorter"));
}

TEST_F(Files, OpeningFailsWithTheReason) {
  EXPECT_EQ(error_of([&] { (void)open_file(path); }).code(), ErrorCode::not_found);
  EXPECT_EQ(error_of([&] { (void)MappedFile::open(path); }).code(), ErrorCode::not_found);
  EXPECT_THAT(error_of([&] { (void)open_file(directory); }).what(),
              HasSubstr("not a regular file"));
  EXPECT_EQ(error_of([&] { (void)open_file(directory); }).code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error_of([&] { (void)MappedFile::open(directory); }).what(), HasSubstr(directory));
  EXPECT_EQ(error_of([&] { (void)MappedFile::open(directory); }).code(),
            ErrorCode::invalid_argument);
}

TEST_F(Files, RegistryChoosesByScheme) {
  std::ofstream(path) << "local";
  SourceRegistry registry;
  registry.add("s3", [](const std::string& uri) { return make_memory_source("from " + uri, uri); });
  EXPECT_EQ(read_all(*registry.open(path)), "local");
  EXPECT_EQ(read_all(*registry.open("file://" + path)), "local");
  EXPECT_EQ(read_all(*registry.open("s3://bucket/key")), "from s3://bucket/key");
  const Error error = error_of([&] { (void)registry.open("gs://x"); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr("file, s3"));
}

TEST_F(Files, APatternInAnUnreadableDirectoryIsAnError) {
  fs::create_symlink("loop", directory + "/loop");
  for (const char* pattern : {"/loop", "/loop/", "/loop/*.txt"})
    EXPECT_THAT(error_of([&] { (void)SourceRegistry().match(directory + pattern); }).what(),
                HasSubstr("Too many levels"));
  EXPECT_EQ(error_of([&] { (void)SourceRegistry().match(directory + "/none/*.txt"); }).code(),
            ErrorCode::not_found);
}

TEST_F(Files, MapsWholeFiles) {
  std::ofstream(path) << std::string(10'001, 'x') + "y";
  const auto map = MappedFile::open(path);
  ASSERT_EQ(map->bytes().size(), 10'002u);
  EXPECT_EQ(static_cast<char>(map->bytes()[10'001]), 'y');
  fs::remove(path);  // the mapping keeps the bytes
  EXPECT_EQ(static_cast<char>(map->bytes()[0]), 'x');
  std::ofstream(path).flush();
  EXPECT_TRUE(MappedFile::open(path)->bytes().empty());
}

// A child reads a mapped file that was truncated. Checks its output and status.
TEST_F(Files, ABusErrorNamesTheFile) {
  std::ofstream(path) << std::string(100'000, 'x');
  const auto map = MappedFile::open(path);
  fs::resize_file(path, 10);
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDERR_FILENO);
    name_files_that_bus_errors_hit();
    const volatile std::byte read = map->bytes()[99'999];
    (void)read;
    ::_exit(0);
  }
  ::close(pipe[1]);
  std::string said(4096, '\0');
  const ssize_t count = ::read(pipe[0], said.data(), said.size());
  ::close(pipe[0]);
  said.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_THAT(said, ::testing::StartsWith("shoal: cannot read " + path + " any more (bus error)"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1);
}

TEST_F(Files, ReportsProgress) {
  int signs = 0;
  {
    const progress::Listener hears([&] { ++signs; });
    write_file_atomically(path, "text");
    EXPECT_GE(signs, 2);
    const int written = signs;
    (void)MappedFile::open(path);
    EXPECT_GT(signs, written);
  }
  const int heard = signs;
  (void)MappedFile::open(path);
  EXPECT_EQ(signs, heard) << "the listener was removed";
}

TEST_F(Files, AreNotWrittenIfTheListenerThrows) {
  const progress::Listener hears([] { throw Error(ErrorCode::aborted, "enough"); });
  EXPECT_EQ(error_of([&] { write_file_atomically(path, "text"); }).code(), ErrorCode::aborted);
  EXPECT_EQ(entries(), 0U);
}

TEST_F(Files, AtomicFileReplacesOnCommitOnly) {
  write_file_atomically(path, "old");
  ::chmod(path.c_str(), 0640);
  {
    AtomicFile file(path, 100);
    file.write("new ");
    file.write("content");
    EXPECT_EQ(read_text_file(path), "old");
  }
  EXPECT_EQ(read_text_file(path), "old") << "the file is replaced only on commit";
  EXPECT_EQ(entries(), 1u) << "the temporary file is removed";
  AtomicFile file(path, 100);
  file.write("new content");
  file.commit();
  EXPECT_EQ(read_text_file(path), "new content") << "unused reserved space is released";
  EXPECT_EQ(entries(), 1u);
  struct stat status{};
  ::stat(path.c_str(), &status);
  EXPECT_EQ(status.st_mode & 0777, 0640u) << "the mode is preserved";
  EXPECT_THROW(file.commit(), Error);
  EXPECT_THROW(file.write("x"), Error);
}

// umask() applies to the whole process, so a child sets it.
int mode_under_umask(mode_t mask, const std::string& path) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::umask(mask);
    write_file_atomically(path, "text");
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  struct stat made{};
  EXPECT_EQ(::stat(path.c_str(), &made), 0);
  return static_cast<int>(made.st_mode & 07777);
}

TEST_F(Files, ANewFileHasTheModeThatTheUmaskLeaves) {
  for (const auto& [mask, mode] : {std::pair{0077, 0600}, {0022, 0644}, {0002, 0664}, {0027, 0640}})
    EXPECT_EQ(mode_under_umask(static_cast<mode_t>(mask), path + std::to_string(mask)), mode);
  for (const int mode : {0600, 0644, 0666, 0440}) {  // a replacing file keeps these modes
    write_file_atomically(path, "old");
    ::chmod(path.c_str(), static_cast<mode_t>(mode));
    EXPECT_EQ(mode_under_umask(0077, path), mode);
    EXPECT_EQ(read_text_file(path), "text");
  }
}

TEST_F(Files, ReadersSeeOnlyWholeVersions) {
  write_file_atomically(path, std::string(100'000, 'a'));
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; i < 30; ++i)
      write_file_atomically(path, std::string(100'000, i % 2 ? 'a' : 'b'));
    stop = true;
  });
  while (!stop) {
    const std::string text = read_text_file(path);
    ASSERT_EQ(text, std::string(100'000, text[0]));
  }
  writer.join();
}

TEST_F(Files, UnwritableDirectoryIsOneLine) {
  const Error error = error_of([&] { write_file_atomically("/nonexistent/x", "t"); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_THAT(error.what(), HasSubstr("cannot create /nonexistent/x: No such file or directory"));
  EXPECT_THROW(sync_directory(directory + "/none"), Error);
  EXPECT_THROW(rename_and_sync(directory + "/none", path), Error);
}

// A file-size limit makes write() fail like a full disk, and needs no mount. It runs in a child,
// because limits and ignored signals persist in a process.
int limited_child(const std::string& path, std::int64_t expected) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{65536, 65536};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int status = 1;
    try {
      AtomicFile file(path, expected);
      for (int i = 0; i < 100; ++i) file.write(std::string(4096, 'n'));
      file.commit();
    } catch (const Error& error) {
      const std::string what = error.what();
      const bool told = error.code() == ErrorCode::io && what.find(path) != what.npos &&
                        what.find("File too large") != what.npos &&
                        what.find(expected ? "409600 bytes" : "69632 bytes") != what.npos &&
                        what.find("make room") != what.npos;
      status = told ? 0 : 2;
      if (!told) (void)!::write(2, what.data(), what.size());
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST_F(Files, AFullDiskLeavesTheOldFile) {
  write_file_atomically(path, "old");
  EXPECT_EQ(limited_child(path, 0), 0) << "the error is found while writing";
  EXPECT_EQ(limited_child(path, 409'600), 0) << "the error is found before writing";
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_EQ(entries(), 1u) << "no temporary file remains";
}

TEST_F(Files, RenameAndSyncMovesADirectory) {
  fs::create_directories(directory + "/tmp");
  std::ofstream(directory + "/tmp/f") << "x";
  rename_and_sync(directory + "/tmp", directory + "/final/");
  EXPECT_EQ(read_text_file(directory + "/final/f"), "x");
}

TEST(Json, RefusesInputsThatLenientParsersAccept) {
  EXPECT_EQ(parse_json(R"({"a": [1, {"b": 2}]})", "x")["a"][1]["b"], 2);
  EXPECT_EQ(parse_json(R"({"a": {"k": 1}, "b": {"k": 2}})", "x")["b"]["k"], 2);
  EXPECT_THAT(error_of([] { (void)parse_json(R"({"a":{"k":1,"k":1}})", "f.json"); }).what(),
              HasSubstr("f.json: the key 'k' stands twice"));
  EXPECT_THAT(error_of([] { (void)parse_json("[[[1]]]", "f", 2); }).what(),
              HasSubstr("deeper than 2"));
  for (const char* text : {"", "{", "{\"a\":}", "nul", "1 2", "{\"a\":1}x", "\"\xff\"", "[1e999]"})
    EXPECT_EQ(error_of([text] { (void)parse_json(text, "f"); }).code(), ErrorCode::corrupt_data)
        << text;
}

}  // namespace
}  // namespace shoal
