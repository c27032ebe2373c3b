// Telling a checkpoint-N of transformers' Trainer from one of Shoal's.
#include "shoal/train/checkpoint/transformers_checkpoint.h"

#include <filesystem>

#include "support/temporary_directory.h"
#include <gmock/gmock.h>

#include "shoal/runtime/io/files.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTheirs = R"({"epoch": 1.0, "global_step": 5, "log_history": []})";
constexpr const char* kOurs = R"({"global_step": 5, "log_history": [], "shoal": {}})";

class TransformersCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(path); }
  void write(const char* name, const char* text) const {
    write_file_atomically(path + "/" + name, text);
  }
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "checkpoint-5";
};

TEST_F(TransformersCheckpoint, IsKnownByWhatIsInIt) {
  EXPECT_FALSE(is_transformers_checkpoint(path));
  write("trainer_state.json", kTheirs);
  EXPECT_TRUE(is_transformers_checkpoint(path));
  write("trainer_state.json", kOurs);
  EXPECT_FALSE(is_transformers_checkpoint(path)) << "one of Shoal's that was cut short";
  write("trainer_state.json", "{\"epoch\":");
  EXPECT_FALSE(is_transformers_checkpoint(path));
  write("optimizer.pt", "PK");
  EXPECT_TRUE(is_transformers_checkpoint(path));
}

TEST_F(TransformersCheckpoint, IsNamedAndNoOneOfOurs) {
  write("trainer_state.json", kTheirs);
  write("rng_state.pth", "PK");
  EXPECT_THAT(checkpoint_problem(path, true).value_or(""),
              ::testing::AllOf(HasSubstr("a checkpoint of transformers' Trainer"),
                               HasSubstr("--model_name_or_path " + path)));
  std::string reason;
  EXPECT_FALSE(newest_checkpoint(directory.path(),
                                 [&](const auto&, const std::string& why) { reason = why; }));
  EXPECT_THAT(reason, HasSubstr("transformers"));
}

}  // namespace
}  // namespace shoal
