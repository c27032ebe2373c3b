// The host's streams run immediately, so these tests see the branch's calls and when it releases
// tensors. tests/gpu/training_test.cc shows on a device that streams wait for each other.
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
  // Queues work that holds `token` and records its number.
  void queue(WeightBranch& branch, int number) {
    branch.run(rig_.context, [this, number, token = token_] { ran_.push_back(number); });
  }
  long held() const { return token_.use_count() - 1; }

  Rig rig_{testing::make_test_kernels(0)};
  std::shared_ptr<int> token_ = std::make_shared<int>(0);
  std::vector<int> ran_;
};

TEST_F(WeightBranchTest, HoldsTensorsUntilTheirWorkWasAwaited) {
  WeightBranch branch(rig_.context.stream.device, 3);
  for (int i = 0; i < 3; ++i) queue(branch, i);
  EXPECT_EQ(held(), 3);
  queue(branch, 3);  // the branch waits for the oldest work
  EXPECT_EQ(held(), 3);
  branch.join(rig_.context);
  EXPECT_EQ(held(), 0);
  for (int i = 4; i < 6; ++i) queue(branch, i);  // around the ring
  EXPECT_EQ(held(), 2);
  branch.join(rig_.context);
  branch.join(rig_.context);
  EXPECT_EQ(held(), 0);
  EXPECT_THAT(ran_, ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST_F(WeightBranchTest, RethrowsAndRestoresTheContext) {
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

TEST(WantsWeightBranch, IsTrueForSmallStepsByDefault) {
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
