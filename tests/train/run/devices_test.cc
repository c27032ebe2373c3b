// Ranks exchange their devices; unusable combinations are refused.
#include "shoal/train/run/devices.h"

#include <optional>

#include "support/hostile_cards.h"
#include "support/ranks.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RankDevice gpu(const std::string& host, int index, const std::string& identity,
               const std::string& kind = "A100, 80 GiB") {
  return {.host = host,
          .why = "local rank",
          .device = Device::cuda(index),
          .identity = identity,
          .description = kind};
}

RankDevice cpu(const std::string& host) {
  return {.host = host,
          .why = "there is no GPU",
          .device = Device::cpu(),
          .identity = {},
          .description = {}};
}

TEST(Devices, EachRankKnowsThoseOfAllRanks) {
  test::run_thread_ranks(3, [](const World& world, Store& store) {
    RankDevice own = gpu("a", world.rank, "GPU-" + std::to_string(world.rank));
    own.free = 1000 + world.rank;
    const auto all = exchange_devices(world, store, own, Deadline::in_seconds(20));
    ASSERT_EQ(all.size(), 3U);
    for (int rank = 0; rank < 3; ++rank) {
      const RankDevice& of = all[static_cast<std::size_t>(rank)];
      EXPECT_EQ(of.device, Device::cuda(rank));
      EXPECT_EQ(of.identity, "GPU-" + std::to_string(rank));
      EXPECT_EQ(of.free, 1000 + rank);
      EXPECT_EQ(of.host, "a");
      EXPECT_EQ(of.description, "A100, 80 GiB");
    }
  });
}

TEST(Devices, UnreadableCardsNameTheirRank) {
  auto cards = test::hostile_cards();
  cards.insert(cards.end(), {R"(["a","b",false,0,"c","d"])", R"(["a","b",false,-1,"c","d",0])",
                             R"(["a","b",false,70000,"c","d",0])", R"(["a","b",0,0,"c","d",0])",
                             R"([1,"b",false,0,"c","d",0])", R"(["a","b",false,0,null,"d",0])",
                             R"(["a","b",false,0,"c","d",9223372036854775808])"});
  for (const std::string& card : cards) {
    const auto store = make_hash_store();
    test::PlantedStore planted(*store, "devices/1", card);
    const Error error = test::error_from([&] {
      exchange_devices(test::local_world(0, 2), planted, cpu("a"), Deadline::in_seconds(5));
    });
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << test::shown(card);
    EXPECT_THAT(error.what(), HasSubstr("devices: the card of rank 1 is unreadable"));
  }
}

TEST(Devices, AllRanksNameARankWithoutAGpu) {
  const auto errors = test::thread_rank_errors(3, [](const World& world, Store& store) {
    exchange_devices(world, store, world.rank == 1 ? cpu("b") : gpu("a", world.rank, "x"),
                     Deadline::in_seconds(20));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("ranks 0, 2 have a GPU on a"),
                                 HasSubstr("rank 1 has no GPU on b (there is no GPU)"),
                                 HasSubstr("--use_cpu true"))));
}

TEST(Devices, OneKindIsAccepted) {
  EXPECT_NO_THROW(check_devices(std::vector{cpu("a"), cpu("b")}));
  EXPECT_NO_THROW(check_devices(std::vector{gpu("a", 0, "x")}));
}

// CUDA_VISIBLE_DEVICES may show each rank one GPU as the first, or one GPU under two numbers.
TEST(Devices, AreOneGpuByItsIdentity) {
  const std::vector apart{gpu("a", 0, "x"), gpu("a", 0, "y")};
  EXPECT_THAT(ranks_on_device_of(apart, 1), ElementsAre(1));
  const std::vector shared{gpu("a", 0, "x"), gpu("a", 1, "y"), gpu("a", 1, "x")};
  EXPECT_THAT(ranks_on_device_of(shared, 2), ElementsAre(0, 2));
  EXPECT_THAT(ranks_on_device_of(shared, 1), ElementsAre(1));
  EXPECT_THAT(ranks_on_device_of(std::vector{gpu("a", 0, ""), gpu("b", 0, "")}, 0), ElementsAre(0));
  EXPECT_THAT(ranks_on_device_of(std::vector{cpu("a"), cpu("a")}, 1), ElementsAre(1));
}

TEST(Devices, StandInTheHeadOfTheLog) {
  EXPECT_THAT(device_lines(std::vector{cpu("a"), cpu("a")}), IsEmpty());
  EXPECT_THAT(device_lines(std::vector{gpu("a", 0, "x")}), IsEmpty());
  EXPECT_THAT(device_lines(std::vector{gpu("a", 0, "x"), gpu("a", 1, "y"), gpu("b", 0, "z")}),
              ElementsAre("devices: 3 ranks on 3 GPUs of 2 hosts, each A100, 80 GiB",
                          "  a: rank 0 cuda:0, rank 1 cuda:1", "  b: rank 2 cuda:0"));
  EXPECT_THAT(device_lines(std::vector{gpu("a", 0, "x"), gpu("a", 0, "x")}),
              ElementsAre("devices: 2 ranks on 1 GPU of 1 host, A100, 80 GiB",
                          "  a: rank 0 cuda:0, rank 1 cuda:0",
                          HasSubstr("2 ranks share 1 GPU: each waits for the other's work")));
  EXPECT_THAT(device_lines(std::vector{gpu("a", 0, "x"), gpu("a", 1, "y", "T4")}),
              ElementsAre("devices: 2 ranks on 2 GPUs of 1 host", HasSubstr("cuda:1"),
                          "  rank 0: A100, 80 GiB", "  rank 1: T4"));
}

TEST(Devices, SharedAreDividedByTheirRanks) {
  const World world = test::local_world(0, 2);
  EXPECT_FALSE(memory_limit(std::nullopt, world, Device::cuda(0), {.ranks = 1, .free = 1000}));
  const auto limit = memory_limit(std::nullopt, world, Device::cuda(0), {.ranks = 4, .free = 1000});
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->bytes, 225);
  EXPECT_THAT(limit->bound, AllOf(HasSubstr("cuda:0"), HasSubstr("shared by 4 ranks")));
  EXPECT_EQ(memory_limit(1.0, world, Device::cuda(0), {.ranks = 4, .free = 1000})->bytes, 1 << 20);
}

}  // namespace
}  // namespace shoal
