// Activations that are offloaded between forward and backward, on meshes whose tensors are large
// enough: from the host to a file, from a device to pinned memory. The number of tensors is what
// the layout predicts, and no bit of the steps differs. Smaller tensors stay.
#include "rig.h"

namespace shoal::parallel {
namespace {

constexpr int kTwoSteps = 2, kWidth = 64;
// Rows of a microbatch on each rank. On the host 16 x 16 x 64 f32 are 64 KiB, the default minimum
// for offloading. The emulated GPU uses an eighth.
int rows_of_one() { return testing::on_cuda() ? 2 : 16; }
std::int64_t stream_bytes() { return std::int64_t{rows_of_one()} * kLength * kWidth * 4; }
std::int64_t offload_from() {
  return testing::on_cuda() ? stream_bytes() : OffloadOptions{}.min_bytes;
}

Task task_of(int parts) { return {.rows = rows_of_one() * parts, .heads = kWidth / 4}; }

class MeshOffload : public ::testing::TestWithParam<Layout> {};

// Per microbatch, each group of checkpoints offloads its input. The head offloads the input of its
// norm and the gradient that it computes in forward.
std::int64_t tensors_of(const Layout& layout, const std::vector<UnitRange>& units) {
  std::int64_t tensors = 0;
  for (const UnitRange& stage : units) {
    const int blocks = std::min(stage.last, kUnits - 1) - std::max(stage.first, 1);
    tensors += (std::max(blocks, 0) + layout.checkpoint_group - 1) / layout.checkpoint_group;
    if (stage.last == kUnits) tensors += 2;
  }
  return kTwoSteps * layout.microbatches * tensors;
}

TEST_P(MeshOffload, TakesWhatTheLayoutSaysAndChangesNoBit) {
  Layout layout = GetParam();
  layout.task = task_of(2);
  layout.offload_from = offload_from();
  ASSERT_EQ(stream_bytes(), layout.offload_from);
  const Trained away = trained(layout, 0, kTwoSteps);
  for (std::size_t rank = 0; rank < away.offloaded.size(); ++rank) {
    SCOPED_TRACE(rank);
    const auto& [statistics, units] = away.offloaded[rank];
    EXPECT_GT(statistics.bytes, 0);
    EXPECT_EQ(statistics.tensors, tensors_of(layout, units));
    EXPECT_EQ(statistics.bytes, statistics.tensors * stream_bytes());
    EXPECT_GE(statistics.peak_bytes, statistics.bytes / kTwoSteps / layout.microbatches);
  }
  layout.offload = false;
  const Trained kept = trained(layout, 0, kTwoSteps);
  EXPECT_EQ(away.losses, kept.losses);
  EXPECT_EQ(away.norms, kept.norms);
  EXPECT_EQ(away.state.values, kept.state.values);
  for (const Offloaded& rank : kept.offloaded) EXPECT_EQ(rank.statistics.tensors, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MeshOffload,
    ::testing::Values(Layout{.rdp = 2, .checkpoint_group = 1, .offload = true, .sharding = 3},
                      Layout{.pp = 2, .microbatches = 2, .checkpoint_group = 2, .offload = true},
                      Layout{.tp = 2, .prescaled = true, .checkpoint_group = 1, .offload = true}),
    [](const auto& test) { return test.param.text(); });

// With one row less, each tensor is below the minimum.
TEST(MeshOffloadOf, SmallerTensorsStay) {
  Task task = task_of(1);
  task.rows -= 1;
  const Trained run = trained(
      {.task = task, .checkpoint_group = 1, .offload = true, .offload_from = offload_from()}, 0, 1);
  EXPECT_EQ(run.offloaded[0].statistics.tensors, 0);
}

}  // namespace
}  // namespace shoal::parallel
