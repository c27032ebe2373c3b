// Errors of a group of some ranks, as the job's ranks read them.
#include "shoal/torch/job_ranks.h"

#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "shoal/runtime/rendezvous/store.h"
#include "shoal/torch/store.h"

namespace shoal::pytorch {
namespace {

TEST(JobRanks, RenamesTheRanksOfErrors) {
  const JobRanks ranks(1, {4, 7, 9}, nullptr);
  Error error(ErrorCode::timeout,
              "missing: rank(s) 0, 2: 8 bytes to rank 2, 1 of 3; ranks 0 and 1 differ, ranks 1, 2 "
              "too; on the rail of local rank 1; root 2");
  error.at_rank(1).with_peer(2).in_operation("recv of 4 f32 from rank 2 (#1)");
  EXPECT_STREQ(
      ranks.in_job(error).what(),
      "missing: rank(s) 4, 9: 8 bytes to rank 9, 1 of 3; ranks 4 and 7 differ, ranks 7, 9 "
      "too; on the rail of local rank 1; root 9 [rank 7, peer 9, recv of 4 f32 from rank 9 "
      "(#1) among ranks 4, 7, 9]");
}

Error lost(int peer) {
  return Error(ErrorCode::peer_lost, fmt::format("rank {} is lost", peer)).with_peer(peer);
}

TEST(JobRanks, QuotesTheRanksToBlame) {
  const std::shared_ptr<Store> store = make_hash_store();
  const auto of = [&](int rank, std::vector<int> members) {
    return std::make_shared<JobRanks>(rank, std::move(members), store);
  };
  const auto last = of(0, {2, 3}), middle = of(0, {1, 2}), first = of(0, {0, 1});
  const auto other = of(1, {1, 2});  // of the rank that `last` is of
  EXPECT_EQ(last->explained(lost(1)).message(), "rank 3 is lost");
  EXPECT_EQ(middle->explained(lost(1)).message(), "rank 2 is lost; rank 2 says: rank 3 is lost");
  EXPECT_EQ(first->explained(lost(1)).message(),
            "rank 1 is lost; rank 1 says: rank 2 is lost; rank 2 says: rank 3 is lost");
  // What follows from the first failure is no statement.
  EXPECT_EQ(other->explained(lost(0)).message(), "rank 1 is lost; rank 1 says: rank 2 is lost");
  EXPECT_EQ(first->explained(lost(1)).message(),
            "rank 1 is lost; rank 1 says: rank 2 is lost; rank 2 says: rank 3 is lost");
}

// new_group() prefixes the store of the default group, which has prefixes already.
TEST(JobStore, IsTheSameForTheDefaultGroupAndOthers) {
  using Wrapped = c10::intrusive_ptr<c10d::Store>;
  const auto within = [](const char* prefix, const Wrapped& store) -> Wrapped {
    return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
  };
  const Wrapped base = c10::make_intrusive<c10d::HashStore>();
  for (const bool by_rendezvous : {true, false}) {
    const Wrapped world = within("0/", by_rendezvous ? within("default_pg", base) : base);
    const Wrapped of_world = job_store(within("cpu/", world));
    const std::string said = by_rendezvous ? "rendezvous" : "own store";
    of_world->set("failed", said);
    const Wrapped of_part = job_store(within("cpu/", within("1/", world)));
    EXPECT_EQ(of_part->get_to_str("failed"), said);
  }
}

}  // namespace
}  // namespace shoal::pytorch
