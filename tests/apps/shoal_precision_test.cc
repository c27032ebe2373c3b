// `bf16: auto`: the processor decides. ONEDNN_MAX_CPU_ISA emulates one without bf16.
#include "apps/shoal_task_fixture.h"

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::Not;

class ShoalPrecision : public ShoalOnTasks {
 protected:
  // Runs as on a processor with AVX2 only.
  ProgramResult without(const std::vector<std::string>& more) const {
    ProgramOptions options;
    options.environment.emplace_back("ONEDNN_MAX_CPU_ISA=AVX2");
    return train(more, options);
  }
  // The compute type that the checkpoint records.
  std::string saved() const {
    return json_of(out() + "/checkpoint-3/trainer_state.json")["shoal"]["compute_dtype"];
  }
  // Expects `line` before the first logged loss.
  static void expect_before_training(const ProgramResult& run, const std::string& line) {
    ASSERT_EQ(run.status, 0) << run.err;
    ASSERT_THAT(run.out, HasSubstr(line));
    EXPECT_LT(run.out.find(line), run.out.find("'loss'")) << run.out;
  }
};

TEST_F(ShoalPrecision, AutoIsF32IfBf16IsEmulated) {
  const auto emulated = without({"--bf16", "auto"});
  expect_before_training(emulated, "bf16 auto: f32, this processor has no AVX512_BF16 or AMX");
  EXPECT_THAT(emulated.out, AllOf(HasSubstr("parameters, f32\n"), Not(HasSubstr("warning"))));
  EXPECT_EQ(saved(), "f32");
  const std::string weights = text_of(model_file());
  ASSERT_EQ(without({"--overwrite_output_dir", "true"}).status, 0);
  EXPECT_EQ(text_of(model_file()), weights) << "f32 was requested";
}

TEST_F(ShoalPrecision, EmulatedBf16IsReportedBeforeTraining) {
  expect_before_training(without({"--bf16", "true"}), "warning: bf16 is emulated (");
  EXPECT_EQ(saved(), "bf16");
}

// A run that is resumed on another kind of processor keeps its compute type.
TEST_F(ShoalPrecision, AResumedRunComputesAsItsCheckpoint) {
  ASSERT_EQ(without({"--bf16", "true", "--max_steps", "3"}).status, 0);
  const auto resumed = without({"--bf16", "auto", "--resume_from_checkpoint", "true"});
  expect_before_training(resumed, "bf16 auto: bf16, as " + out() + "/checkpoint-3 was trained");
  EXPECT_THAT(resumed.out, AllOf(HasSubstr("bf16 with f32 masters"), HasSubstr("is emulated")));
  const auto changed =
      without({"--bf16", "false", "--resume_from_checkpoint", out() + "/checkpoint-3"});
  ASSERT_EQ(changed.status, 0) << changed.err;
  EXPECT_THAT(changed.out, HasSubstr("the type computed in was bf16 in "));
}

TEST_F(ShoalPrecision, AutoIsOnlyForBf16) {
  expect_refused(train({"--bf16", "auto", "--fp16", "true"}), "bf16 is auto and fp16 is set");
  expect_refused(train({"--bf16", "auto", "--stochastic_rounding", "true"}), "set bf16 true");
  expect_refused(train({"--bf16", "sometimes"}), "true, false or auto");
}

}  // namespace
}  // namespace shoal
