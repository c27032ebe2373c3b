// A few steps of every kind of parallelism on a device, with the tensors in device memory.
// They equal one rank's steps, have the same bits twice, and wait for the device only as
// often as one rank does.
#include "rig.h"
#include "support/little_time.h"

namespace shoal::parallel {
namespace {

constexpr int kFew = 4, kFirstSteady = 2;
constexpr Task kSmall{.rows = 4, .length = 8, .heads = 4};
constexpr Task kSmallLlama{.rows = 4, .length = 8, .heads = 4, .model = Model::llama};
constexpr Task kSmallPacked{.rows = 4, .length = 8, .heads = 4, .packed = true};
constexpr Task kSmallPackedLlama{
    .rows = 4, .length = 8, .heads = 4, .model = Model::llama, .packed = true};

class OnDevice : public ::testing::TestWithParam<Layout> {};

Trained alone(const Layout& layout) {
  return trained({.task = layout.task, .microbatches = layout.microbatches}, 0, kFew);
}

// The maximum of each count over the steady steps.
DeviceStatistics most_asked(const Trained& run) {
  DeviceStatistics most;
  for (std::size_t step = kFirstSteady; step < run.asked.size(); ++step) {
    const DeviceStatistics& asked = run.asked[step];
    most.synchronizations = std::max(most.synchronizations, asked.synchronizations);
    most.blocking_copies = std::max(most.blocking_copies, asked.blocking_copies);
    most.allocations = std::max(most.allocations, asked.allocations);
  }
  return most;
}

TEST_P(OnDevice, StepsAreOneRanksAndWaitNoMore) {
  const Layout& layout = GetParam();
  const Trained want = alone(layout), got = trained(layout, 0, kFew);
  const Difference found = difference(got, want);
  EXPECT_LT(found.loss, 2e-5);
  EXPECT_LT(found.norm, 2e-4);
  EXPECT_LT(found.gradient, 1e-5);
  EXPECT_NEAR(got.evaluated, want.evaluated, 2e-5 * want.evaluated);
  expect_one_writer(got.state, want.state);
  const DeviceStatistics one = most_asked(want), all = most_asked(got);
  const int ranks = layout.ranks();
  EXPECT_LE(one.synchronizations, testing::on_cuda() ? 2 : 0) << "the loss and the norm";
  EXPECT_LE(all.synchronizations, ranks * one.synchronizations);
  EXPECT_LE(all.blocking_copies, ranks * one.blocking_copies);
  EXPECT_EQ(one.allocations, 0);
  // The number of blocks in flight, for messages and uploads, depends on timing.
  if (layout.pp == 1 && layout.tp == 1) {
    EXPECT_EQ(all.allocations, 0);
  }
}

// No host thread waits during queued steps, and they have the same bits. In f16 the
// first steps overflow.
TEST_P(OnDevice, QueuedStepsWaitForNothing) {
  if (!testing::on_cuda()) GTEST_SKIP() << "the host's kernels are done when they return";
  Layout layout = GetParam();
  if (layout.task.packed && testing::has_little_time())
    GTEST_SKIP() << "only ./dev test --full runs it";
  layout.dtype = DType::f16;
  layout.first_scale = 0x1p20;
  const Trained want = trained(layout, 0, kFew);
  layout.queued = true;
  const Trained got = trained(layout, 0, kFew);
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (std::size_t step = 0; step < want.losses.size(); ++step) {
    EXPECT_DOUBLE_EQ(got.losses[step], want.losses[step]);
    EXPECT_EQ(got.skipped[step], want.skipped[step]);
    if (!want.skipped[step]) {
      EXPECT_EQ(got.norms[step], want.norms[step]);
    }
  }
  EXPECT_TRUE(want.skipped.front());
  EXPECT_FALSE(want.skipped.back());
  EXPECT_EQ(got.state.values, want.state.values);
  EXPECT_EQ(most_asked(got).synchronizations, 0);
}

TEST_P(OnDevice, TwiceIsTheSameBits) {
  const Trained first = trained(GetParam(), 0, 2), second = trained(GetParam(), 0, 2);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.norms, second.norms);
  EXPECT_EQ(first.state.values, second.state.values);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, OnDevice,
    ::testing::Values(
        Layout{.task = kSmall, .tp = 2, .prescaled = true, .speed = true},
        Layout{.task = kSmall, .tp = 2, .prescaled = true}, Layout{.task = kSmall, .tp = 2},
        Layout{.task = kSmallLlama, .tp = 2, .prescaled = true, .checkpoint_group = 1},
        Layout{.task = kSmallPacked, .tp = 2, .prescaled = true},
        Layout{.task = kSmallPackedLlama, .tp = 2},
        Layout{.task = kSmallPacked, .pp = 2, .microbatches = 2}, Layout{.task = kSmall, .rdp = 2},
        Layout{.task = kSmall, .rdp = 2, .sharding = 1},
        Layout{.task = kSmall, .rdp = 2, .sharding = 2},
        Layout{.task = kSmall, .rdp = 2, .sharding = 3},
        Layout{.task = kSmall, .pp = 2, .microbatches = 2},
        Layout{.task = kSmall, .rdp = 2, .tp = 2, .prescaled = true, .sharding = 3},
        Layout{.task = kSmall, .rdp = 4, .sharding = 2, .degree = 2}),
    [](const auto& test) { return test.param.text(); });

}  // namespace
}  // namespace shoal::parallel
