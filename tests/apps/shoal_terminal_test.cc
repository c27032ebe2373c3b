// The output of `shoal` for foreign texts, and the effect of environment variables.
#include <filesystem>
#include <fstream>

#include "apps/shoal_fixture.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shoal {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Not;

// Names from files are printed without control sequences for the terminal.
TEST_F(Shoal, ShowsNamesThatWouldCommandTheTerminal) {
  const std::string header =
      R"({"w\u001b[31m\u009b2J\u202e": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})";
  fs::create_directories(mine_ / "model");
  std::ofstream(mine_ / "model/model.safetensors")
      << static_cast<char>(header.size()) << std::string(7, '\0') << header << std::string(4, '\0');
  std::ofstream(mine_ / "model/config.json") << R"({"model_type": "gpt2"})";
  const auto inspected = shoal({"checkpoint", "inspect", mine_ / "model"});
  EXPECT_THAT(inspected.out, HasSubstr("w\\x1b[31m\\u009b2J\\u202e")) << inspected.err;
  EXPECT_EQ(inspected.out.find_first_of("\x1b\xc2\xe2"), std::string::npos);
  fs::create_directories(mine_ / "run");
  std::ofstream(mine_ / "run/metrics.jsonl")
      << R"({"loss": 3, "step": 1})"
         "\n"
         R"({"eval_loss": 2, "eval_\u001b]0;x\u0007": 1, "step": 1})"
         "\n";
  const auto report = shoal({"report", mine_ / "run"});
  EXPECT_EQ(report.status, 0) << report.err;
  EXPECT_THAT(report.out, HasSubstr("eval_\\x1b]0;x\\x07"));
  EXPECT_EQ(report.out.find('\x1b'), std::string::npos);
}

TEST_F(Shoal, NamesEveryVariableOfAWrongType) {
  for (const char* command : {"doctor", "env"}) {
    ProgramOptions wrong;
    wrong.environment = {"SHOAL_THREADS=abc", "SHOAL_STREAM_GATES=maybe"};
    const auto flagged = test::run_program({SHOAL_PROGRAM, command}, wrong);
    EXPECT_EQ(flagged.status, 2) << command;
    EXPECT_THAT(flagged.err, AllOf(HasSubstr("SHOAL_THREADS='abc' is not an integer"),
                                   HasSubstr("SHOAL_STREAM_GATES='maybe' is not true or false")))
        << command;
  }
}

// One variable makes all kernels behave as on a processor without AVX-512.
TEST_F(Shoal, KernelsFollowTheLimitOfOneDnn) {
  ProgramOptions avx2;
  avx2.environment = {"ONEDNN_MAX_CPU_ISA=AVX2"};
  const auto limited = test::run_program({SHOAL_PROGRAM, "doctor"}, avx2);
#if defined(__x86_64__)
  EXPECT_THAT(limited.out, HasSubstr("AVX2 (bf16 products through f32)"));
#endif
}

// A run whose output is lost must not succeed.
TEST(ShoalOutput, AFullDiskIsAnError) {
  const auto result =
      test::run_program({"/bin/sh", "-c", "exec " SHOAL_PROGRAM " env > /dev/full"});
  EXPECT_EQ(result.status, 4);
  EXPECT_THAT(result.err, HasSubstr("cannot write to standard output: No space left on device"));
  for (const char* words : {"train --help", "--help", "version", "doctor"}) {
    const auto lost = test::run_program(
        {"/bin/sh", "-c", fmt::format("exec {} {} > /dev/full", SHOAL_PROGRAM, words)});
    EXPECT_EQ(lost.status, 4) << words;
    EXPECT_THAT(lost.err, HasSubstr("cannot write to standard output")) << words;
    EXPECT_THAT(lost.err, Not(HasSubstr("unexpected"))) << words;
  }
}

TEST_F(Shoal, NamesWordsThatAreWrong) {
  const auto interval = shoal({"study", "study.json", "--dry-run", "--interval", "abc"});
  EXPECT_EQ(interval.status, 2);
  EXPECT_THAT(interval.err,
              AllOf(HasSubstr("abc"), HasSubstr("--interval"), Not(HasSubstr("study.json"))));
  const auto far = shoal({"submit", "job.json", "--verbos"});
  EXPECT_EQ(far.status, 2);
  EXPECT_THAT(far.err,
              AllOf(HasSubstr("there is no option '--verbos'"), Not(HasSubstr("did you"))));
  EXPECT_THAT(shoal({"reprot", "run"}).err, HasSubstr("did you mean report?"));
}

}  // namespace
}  // namespace shoal
