// The host's streams run at once: what is seen here is what a branch calls and when it lets go.
// That streams wait for each other is seen on a device (tests/gpu/training_test.cc).
#include "shoal/nn/autograd/weight_branch.h"

#include <memory>
#include <vector>

#include "nn/rig.h"
#include <gmock/gmock.h>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

using ::testing::ElementsAre;

class WeightBranchTest : public ::testing::Test {
 protected:
  // One work that holds `token` and notes its number.
  void queue(WeightBranch& branch, int number) {
    branch.run(rig_.context, [this, number, token = token_] { ran_.push_back(number); });
  }
  long held() const { return token_.use_count() - 1; }

  Rig rig_{testing::make_test_kernels(0)};
  std::shared_ptr<int> token_ = std::make_shared<int>(0);
  std::vector<int> ran_;
};

TEST_F(WeightBranchTest, HoldsWhatWorksOwnUntilTheyWereWaitedFor) {
  WeightBranch branch(rig_.context.stream.device, 3);
  for (int i = 0; i < 3; ++i) queue(branch, i);
  EXPECT_EQ(held(), 3);
  queue(branch, 3);  // the oldest one is waited for
  EXPECT_EQ(held(), 3);
  branch.join(rig_.context);
  EXPECT_EQ(held(), 0);
  for (int i = 4; i < 6; ++i) queue(branch, i);  // round the ring
  EXPECT_EQ(held(), 2);
  branch.join(rig_.context);
  branch.join(rig_.context);
  EXPECT_EQ(held(), 0);
  EXPECT_THAT(ran_, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(WeightBranchTest, WhatAWorkThrowsGoesOnAndTheContextIsAsBefore) {
  WeightBranch branch(rig_.context.stream.device);
  void* const handle = rig_.context.stream.handle;
  queue(branch, 0);
  EXPECT_THROW(branch.run(rig_.context,
                          [token = token_] { throw_error(ErrorCode::out_of_memory, "no room"); }),
               Error);
  EXPECT_EQ(rig_.context.stream.handle, handle);
  EXPECT_EQ(held(), 2) << "what it queued may still read its tensors";
  branch.give_up();
  EXPECT_EQ(held(), 0);
  queue(branch, 1);
  branch.join(rig_.context);
  EXPECT_THAT(ran_, ElementsAre(0, 1));
}

TEST_F(WeightBranchTest, RefusesToBeOfNoWorks) {
  EXPECT_THROW(WeightBranch(rig_.context.stream.device, 0), Error);
}

TEST(WantsWeightBranch, SmallStepsUnlessToldOtherwise) {
  unsetenv("SHOAL_CAPTURE_BRANCHES");
  EXPECT_TRUE(wants_weight_branch(2048));
  EXPECT_FALSE(wants_weight_branch(2049));
  setenv("SHOAL_CAPTURE_BRANCHES", "on", 1);
  EXPECT_TRUE(wants_weight_branch(1 << 20));
  setenv("SHOAL_CAPTURE_BRANCHES", "off", 1);
  EXPECT_FALSE(wants_weight_branch(1));
  setenv("SHOAL_CAPTURE_BRANCHES", "yes", 1);
  EXPECT_THROW(wants_weight_branch(1), Error);
  unsetenv("SHOAL_CAPTURE_BRANCHES");
}

}  // namespace
}  // namespace shoal::nn
