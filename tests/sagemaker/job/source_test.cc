#include "shoal/sagemaker/job/source.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/sagemaker/process/process.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Source : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root_ / "code/sub");
    fs::create_directories(root_ / "library");
    write("code/run.json", "{}");
    write("code/sub/x.txt", "x");
    write("library/y.txt", "y");
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(root_ / name) << text;
  }
  std::string pack(const SourceCode& code, const std::string& name) {
    pack_source(code, root_.path(), root_ / name);
    return read_text_file(root_ / name);
  }
  static std::string listed(const std::string& archive) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
        ::popen(("tar -tzf " + archive).c_str(), "r"), &::pclose);
    std::string text;
    char block[4096];
    while (const std::size_t got = std::fread(block, 1, sizeof block, pipe.get()))
      text.append(block, got);
    return text;
  }
  void git(std::vector<std::string> words) {
    for (const char* word : {"user.email=a@b", "user.name=a"}) {
      words.insert(words.begin(), word);
      words.insert(words.begin(), "-c");
    }
    words.insert(words.begin(), {"git", "-C", root_ / "code"});
    ASSERT_EQ(run_process(words).status, 0);
  }
  testing::TemporaryDirectory root_;
};

TEST_F(Source, IsPackedAtTheTopWithItsDependencies) {
  const SourceCode code{.entry_point = "run.json",
                        .source_dir = "code",
                        .dependencies = {"library/"},
                        .git = {},
                        .upload_to = {},
                        .kms_key = {}};
  const std::string first = pack(code, "a.tar.gz");
  EXPECT_EQ(listed(root_ / "a.tar.gz"), "run.json\nsub/\nsub/x.txt\nlibrary/\nlibrary/y.txt\n");
  // The times differ, the bytes do not.
  fs::last_write_time(root_ / "code/run.json",
                      fs::file_time_type::clock::now() - std::chrono::hours(5));
  fs::permissions(root_ / "code/run.json", fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(pack(code, "b.tar.gz"), first);
  write("code/run.json", "{} ");
  EXPECT_NE(pack(code, "c.tar.gz"), first);
}

TEST_F(Source, IsTheEntryPointAloneWithoutADirectory) {
  pack({.entry_point = "code/run.json",
        .source_dir = {},
        .dependencies = {},
        .git = {},
        .upload_to = {},
        .kms_key = {}},
       "a.tar.gz");
  EXPECT_EQ(listed(root_ / "a.tar.gz"), "run.json\n");
  // tar reads "a:b" as a file on another machine.
  EXPECT_FALSE(pack({.entry_point = "code/run.json",
                     .source_dir = {},
                     .dependencies = {},
                     .git = {},
                     .upload_to = {},
                     .kms_key = {}},
                    "a:b.tar.gz")
                   .empty());
}

TEST_F(Source, NamesWhatIsMissing) {
  const auto refused = [&](const SourceCode& code) {
    Problems problems;
    check_source(code, root_.path(), problems);
    try {
      problems.check();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  SourceCode code{.entry_point = "run.json",
                  .source_dir = "cod",
                  .dependencies = {},
                  .git = {},
                  .upload_to = {},
                  .kms_key = {}};
  EXPECT_THAT(refused(code), HasSubstr("source_dir: there is no directory"));
  code.source_dir = "code";
  EXPECT_EQ(refused(code), "accepted");
  code.entry_point = "train.json";
  EXPECT_THAT(refused(code), HasSubstr("entry_point: there is no file"));
  code.entry_point = "run.json";
  code.dependencies = {"nothing"};
  EXPECT_THAT(refused(code), HasSubstr("dependencies: there is no"));
  code.entry_point = "train.json";
  EXPECT_THAT(refused(code),
              ::testing::AllOf(HasSubstr("/entry_point: "), HasSubstr("\n/dependencies: ")));
}

TEST_F(Source, IsClonedAtABranchOrCommit) {
  git({"init", "--quiet", "--initial-branch=main"});
  git({"add", "."});
  git({"commit", "--quiet", "-m", "one"});
  git({"tag", "one"});
  write("code/second.txt", "2");
  git({"add", "."});
  git({"commit", "--quiet", "-m", "two"});
  SourceCode code{.entry_point = "run.json",
                  .source_dir = ".",
                  .dependencies = {},
                  .git = GitSource{.repository = "file://" + (root_ / "code"),
                                   .branch = "main",
                                   .commit = {},
                                   .username = {},
                                   .password = {},
                                   .token = {}},
                  .upload_to = {},
                  .kms_key = {}};
  pack(code, "a.tar.gz");
  EXPECT_EQ(listed(root_ / "a.tar.gz"), "run.json\nsecond.txt\nsub/\nsub/x.txt\n");
  code.git->commit = "one";
  pack(code, "b.tar.gz");
  EXPECT_EQ(listed(root_ / "b.tar.gz"), "run.json\nsub/\nsub/x.txt\n");
  code.git->commit = "no-such-commit";
  EXPECT_THROW(pack(code, "c.tar.gz"), Error);
  code.entry_point = "nothing.json";
  code.git->commit.clear();
  EXPECT_THROW(pack(code, "c.tar.gz"), Error);
}

// A link in a cloned repository must not add a file of this machine to the archive.
TEST_F(Source, FollowsNoLinkOutOfAClone) {
  write("secret", "geheim");
  fs::create_symlink("sub/x.txt", root_ / "code/inside");
  git({"init", "--quiet", "--initial-branch=main"});
  git({"add", "."});
  git({"commit", "--quiet", "-m", "one"});
  fs::create_symlink(root_ / "secret", root_ / "code/sub/out");
  git({"add", "."});
  git({"commit", "--quiet", "-m", "two"});
  SourceCode code{.entry_point = "run.json",
                  .source_dir = ".",
                  .dependencies = {},
                  .git = GitSource{.repository = "file://" + (root_ / "code"),
                                   .branch = {},
                                   .commit = "HEAD~1",
                                   .username = {},
                                   .password = {},
                                   .token = {}},
                  .upload_to = {},
                  .kms_key = {}};
  pack(code, "a.tar.gz");
  EXPECT_EQ(listed(root_ / "a.tar.gz"), "inside\nrun.json\nsub/\nsub/x.txt\n");
  code.git->commit.clear();
  try {
    pack(code, "b.tar.gz");
    FAIL() << "packed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("git_config: sub/out in the repository is a link"));
  }
  EXPECT_FALSE(fs::exists(root_ / "b.tar.gz"));
}

TEST_F(Source, KeepsSecretsOutOfMessages) {
  SourceCode code;
  code.git = GitSource{.repository = "https://host/x",
                       .branch = {},
                       .commit = {},
                       .username = "me",
                       .password = "geheim",
                       .token = "t0ken"};
  EXPECT_EQ(without_secrets("https://t0ken@host/x and geheim", code), "https://***@host/x and ***");
}

// git receives the token neither in its command line nor in the clone.
TEST_F(Source, PassesATokenInTheEnvironment) {
  fs::create_directories(root_ / "bin");
  write("bin/git", "#!/bin/sh\necho \"$*\" > " + (root_ / "words") + "\nenv | grep GIT_CONFIG_ > " +
                       (root_ / "environment") + "\necho fatal: t0ken is wrong >&2\nexit 128\n");
  fs::permissions(root_ / "bin/git", fs::perms::owner_all);
  const std::string path = (root_ / "bin") + ":" + std::getenv("PATH");
  const std::string before = std::getenv("PATH");
  ::setenv("PATH", path.c_str(), 1);
  SourceCode code{.entry_point = "run.json",
                  .source_dir = {},
                  .dependencies = {},
                  .git = GitSource{.repository = "https://host/x.git",
                                   .branch = {},
                                   .commit = {},
                                   .username = {},
                                   .password = {},
                                   .token = "t0ken"},
                  .upload_to = {},
                  .kms_key = {}};
  std::string message;
  try {
    pack(code, "a.tar.gz");
  } catch (const Error& error) {
    message = error.what();
  }
  ::setenv("PATH", before.c_str(), 1);
  EXPECT_THAT(message, HasSubstr("*** is wrong"));
  EXPECT_THAT(read_text_file(root_ / "words"), ::testing::Not(HasSubstr("t0ken")));
  // base64 of "t0ken:"
  EXPECT_THAT(read_text_file(root_ / "environment"), HasSubstr("Authorization: Basic dDBrZW46"));
  EXPECT_THAT(read_text_file(root_ / "environment"),
              HasSubstr("GIT_CONFIG_KEY_0=http.https://host/.extraHeader\n"));
}

}  // namespace
}  // namespace shoal::sagemaker
