#include "shoal/parallel/mesh/process_mesh.h"

#include <stdexcept>

#include "support/ranks.h"
#include <gmock/gmock.h>

#include "shoal/collectives/communicator_options.h"

namespace shoal::parallel {
namespace {

using collectives::Communicator;

// Each group sums a number of each rank, and the sum shows its members.
TEST(ProcessMesh, EachGroupHoldsItsRanks) {
  for (const char* placement : {"cluster", "spread", "PTD"})
    for (const MeshShape& shape : {MeshShape{2, 2, 2}, MeshShape{1, 2, 3}, MeshShape{4, 1, 1}})
      test::run_thread_ranks(shape.size(), [&](const World& world, Store& store) {
        const auto communicator = collectives::make_communicator(world, store, {});
        const Placement where(placement);
        const ProcessMesh mesh(*communicator, shape, where);
        EXPECT_EQ(where.rank_at(mesh.place(), shape), world.rank);
        const auto check = [&](Communicator& group, Axes axes) {
          const std::vector<int> ranks = where.group(world.rank, axes, shape);
          ASSERT_EQ(group.size(), static_cast<int>(ranks.size()));
          EXPECT_EQ(ranks[static_cast<std::size_t>(group.rank())], world.rank);
          std::vector<std::int64_t> all(ranks.size());
          const std::int64_t mine = world.rank;
          group.all_gather(&mine, all.data(), 1, DType::i64)->wait();
          EXPECT_TRUE(std::equal(all.begin(), all.end(), ranks.begin()));
        };
        check(mesh.tp(), kTp);
        check(mesh.pp(), kPp);
        check(mesh.rdp(), kRdp);
        check(mesh.mp(), kMp);
        check(mesh.dp(), kDp);
      });
}

TEST(ProcessMesh, GroupsThatAreTheSameRanksAreOne) {
  test::run_thread_ranks(4, [](const World& world, Store& store) {
    const auto communicator = collectives::make_communicator(world, store, {});
    const ProcessMesh mesh(*communicator, {4, 1, 1}, Placement());
    EXPECT_EQ(&mesh.rdp(), communicator.get());
    EXPECT_EQ(&mesh.dp(), communicator.get());
    EXPECT_EQ(&mesh.tp(), &mesh.pp());
    EXPECT_EQ(mesh.tp().size(), 1);
  });
}

// An abort also ends the groups that the mesh split off, because ranks may wait only in them.
TEST(ProcessMesh, AbortEndsTheGroupsItSplit) {
  const auto errors = test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto communicator = collectives::make_communicator(world, store, {});
    const ProcessMesh mesh(*communicator, {2, 1, 1}, Placement());
    const auto split = mesh.split(mesh.rdp(), 0, world.rank);
    if (world.rank == 0) mesh.abort(std::runtime_error("no memory"));
    split->barrier()->wait(Deadline::in_seconds(20));
  });
  EXPECT_THAT(errors[1], ::testing::HasSubstr("rank 0 aborted: no memory"));
}

}  // namespace
}  // namespace shoal::parallel
