#include "shoal/sagemaker/container/outputs.h"

#include <chrono>
#include <filesystem>
#include <fstream>

#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

TEST(Reason, IsShoalsErrorLine) {
  EXPECT_EQ(
      reason_of("[1,0]<stderr>:warning\n[1,3]<stderr>: shoal train: no train_file\n-----\nmpirun "
                "noticed something\n",
                1),
      "shoal train: no train_file (exit status 1)");
  EXPECT_EQ(reason_of("a\nb\n\n", 2), "b (exit status 2)");
  EXPECT_EQ(reason_of("[1,0]<stdout>:[1,3]<stderr>:shoal: x\n[1,1]<stdlog>:y\n[a] <stderr>:z\n", 1),
            "shoal: x (exit status 1)");
  EXPECT_EQ(reason_of("[1,1]<stdlog>:y", 1), "[1,1]<stdlog>:y (exit status 1)");
  EXPECT_EQ(
      reason_of("root@algo-2: Permission denied (publickey).\n-----\nORTE was unable to start "
                "a daemon\nand network routing requirements\n",
                1),
      "ssh: root@algo-2: Permission denied (publickey). (exit status 1)");
  EXPECT_EQ(reason_of("", 3), "shoal train said nothing (exit status 3)");
  EXPECT_THAT(reason_of("", 137), ::testing::HasSubstr("probably for memory"));
  EXPECT_EQ(reason_of(std::string(100000, '['), 1).substr(0, 3), "[[[");
}

// The output of two ranks that write at the same time, after a progress bar and with PyTorch's
// marks, and the line in which mpirun names the rank that failed first.
constexpr const char* kTwoRanks =
    "[1,0]<stderr>:  0%|      | 0/10 [00:00<?, ?it/s]Traceback (most recent call last):\n"
    "[1,1]<stderr>:[rank1]: Traceback (most recent call last):\n"
    "[1,1]<stderr>:[rank1]:   File \"/opt/ml/code/train.py\", line 7, in <module>\n"
    "[1,0]<stderr>:  File \"/opt/ml/code/train.py\", line 9, in <module>\n"
    "[1,1]<stderr>:[rank1]:     raise KeyError(\"answer\")\n"
    "[1,1]<stderr>:[rank1]:           ^^^^^^^^^^^^^^^^\n"
    "[1,1]<stderr>:[rank1]: KeyError: 'answer'\n"
    "[1,0]<stderr>:RuntimeError: rank 1 is gone\n";

TEST(Reason, IsTheEndOfAScriptsTraceback) {
  const std::string of_1 =
      "train.py, rank 1 (exit status 1): KeyError: 'answer'\n"
      "  File \"/opt/ml/code/train.py\", line 7, in <module>\n"
      "    raise KeyError(\"answer\")";
  const std::string of_0 =
      "train.py, rank 0 (exit status 1): RuntimeError: rank 1 is gone\n"
      "  File \"/opt/ml/code/train.py\", line 9, in <module>";
  const std::string text = kTwoRanks;
  EXPECT_EQ(reason_of_script("train.py", text, 1), of_0);  // the rank that wrote first
  EXPECT_EQ(reason_of_script("train.py",
                             text + "-----\n  Process name: [[37204,1],1]\n  Exit code:    1\n", 1),
            of_1);
  EXPECT_EQ(reason_of_script("a.py",
                             "Traceback (most recent call last):\n  File \"a.py\", line 1\n"
                             "ValueError: x\n\nDuring handling of it:\n\n"
                             "Traceback (most recent call last):\n  File \"b.py\", line 2\n"
                             "OSError: y\nmore of y\n",
                             3),
            "a.py (exit status 3): OSError: y\nmore of y\n  File \"b.py\", line 2");
}

TEST(Reason, IsTheLastLineWithoutATraceback) {
  EXPECT_EQ(reason_of_script("a.py", "usage: a.py\na.py: error: no --x\n", 2),
            "a.py: a.py: error: no --x (exit status 2)");
  EXPECT_EQ(reason_of_script("a.py", "", 3), "a.py (exit status 3): it said nothing");
  EXPECT_EQ(reason_of_script("a.py",
                             "[1,0]<stderr>:x\n[1,1]<stderr>:train: python3 was ended by signal 9 "
                             "(Killed)\n[1,1]<stderr>:y\n  Process name: [[1,1],1]\n",
                             137),
            "a.py, rank 1 (exit status 137): python3 was ended by signal 9 (Killed); killed, "
            "probably for memory: use a smaller per_device_train_batch_size, "
            "gradient_checkpointing, or a larger instance");
  EXPECT_EQ(reason_of_script("a.py", "  0%|  | 0/3\r 33%|  | 1/3\r\n", 1),
            "a.py:  33%|  | 1/3 (exit status 1)");
}

// Python writes lines in pieces if unbuffered, and mpirun passes them on.
TEST(Reason, ReadsLinesThatComeInPieces) {
  EXPECT_EQ(
      reason_of_script("a.py",
                       "[1,0]<stderr>: 50%|#   |[1,1]<stderr>: 50%|[1,0]<stderr>:Traceback (most "
                       "recent call last):\n[1,0]<stderr>:  File \"a.py\", line 1\n"
                       "[1,0]<stderr>:ValueError[1,1]<stderr>: 60%|[1,0]<stderr>:: "
                       "[1,0]<stderr>:x[1,0]<stderr>:\n[1,1]<stderr>:y",
                       1),
      "a.py, rank 0 (exit status 1): ValueError: x\n  File \"a.py\", line 1");
}

// A deep recursion is shortened to the exception and its last frames.
TEST(Reason, OfAFailedScriptFitsTheLimit) {
  std::string text = "Traceback (most recent call last):\n";
  for (int i = 0; i < 200; ++i) text += fmt::format("  File \"a.py\", line {}, in f\n", i);
  text += "RecursionError: too deep\n";
  const std::string reason = reason_of_script("a.py", text, 1);
  EXPECT_LE(reason.size(), 1024U);
  EXPECT_GE(reason.size(), 950U);
  EXPECT_THAT(reason, ::testing::StartsWith("a.py (exit status 1): RecursionError: too deep\n"));
  EXPECT_THAT(reason, ::testing::EndsWith("line 199, in f"));
}

TEST(Failure, IsCutAndStays) {
  const testing::TemporaryDirectory root;
  std::string reason;
  for (int i = 0; i < 2000; ++i) reason += "\xc3\xbc";
  write_failure(root / "output", reason);
  EXPECT_EQ(read_text_file(root / "output/failure").size(), 2048U);  // 1,024 characters
  write_failure(root / "output", "another");
  EXPECT_EQ(read_text_file(root / "output/failure").size(), 2048U);
  std::ofstream(root / "file") << "x";
  write_failure(root / "file", "cannot be a directory");  // does not throw
}

class Export : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root_ / "run/checkpoint-5");
    fs::create_directories(root_ / "model");
    std::ofstream(root_ / "run/checkpoint-5/model.safetensors") << "old";
    std::ofstream(root_ / "run/config.json") << "{}";
  }
  testing::TemporaryDirectory root_;
};

TEST_F(Export, ExportsOnlyNewModels) {
  const auto began = fs::file_time_type::clock::now() - std::chrono::seconds(1);
  EXPECT_FALSE(has_model_since(root_ / "run", began));  // a checkpoint is not a model
  std::ofstream(root_ / "run/model.safetensors") << "weights";
  EXPECT_TRUE(has_model_since(root_ / "run", began));
  EXPECT_FALSE(has_model_since(root_ / "run", began + std::chrono::hours(1)));
  EXPECT_FALSE(has_model_since(root_ / "nowhere", began));
}

TEST_F(Export, TakesTheFilesOfTheModel) {
  EXPECT_THROW(export_model(root_ / "run", root_ / "model"), Error);  // no model exists yet
  EXPECT_TRUE(fs::is_empty(root_ / "model"));
  std::ofstream(root_ / "run/model.safetensors") << "new";
  std::ofstream(root_ / "run/run.lock") << "of a run that was killed";
  EXPECT_THAT(export_model(root_ / "run", root_ / "model"),
              ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(read_text_file(root_ / "model/model.safetensors"), "new");
  EXPECT_FALSE(fs::exists(root_ / "model/checkpoint-5"));
  EXPECT_FALSE(fs::exists(root_ / "model/.shoal-export"));
}

TEST_F(Export, LeavesNothingIfItFails) {
  std::ofstream(root_ / "run/model.safetensors") << "new";
  std::ofstream(root_ / "blocked") << "a file";
  EXPECT_THROW(export_model(root_ / "run", root_ / "blocked"), Error);
  EXPECT_THROW(export_model(root_ / "nothing", root_ / "model"), Error);
  EXPECT_TRUE(fs::is_empty(root_ / "model"));
}

}  // namespace
}  // namespace shoal::sagemaker
