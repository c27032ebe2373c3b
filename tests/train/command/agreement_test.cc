// Ranks that were started with different options.
#include "shoal/train/command/agreement.h"

#include <vector>

#include "support/hostile_cards.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

namespace shoal::command {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

struct Started {
  Json options;
  std::string model = "gpt2";
};

// The error of each rank.
std::vector<std::string> said(const std::vector<Started>& ranks) {
  return test::thread_rank_errors(
      static_cast<int>(ranks.size()), [&](const World& world, Store& store) {
        const Started& own = ranks[static_cast<std::size_t>(world.rank)];
        check_agreement(world, store, own.options, own.model, Deadline::in_seconds(20));
      });
}

Json options(const Json& mp_parameters, const char* output_dir = "out") {
  return {{"parallel", {{"mp_parameters", mp_parameters}}},
          {"training", {{"output_dir", output_dir}, {"seed", 42}}},
          {"_sources", {{"seed", output_dir}}}};
}

TEST(Agreement, NamesTheOptionThatDiffers) {
  const Json two = {{"sharded_data_parallel_degree", 2}};
  EXPECT_THAT(said({{options(two)}, {options(Json::object())}, {options(two)}}),
              ElementsAre("",
                          AllOf(HasSubstr("mp_parameters is {} here, and "
                                          "{\"sharded_data_parallel_degree\":2} on rank 0"),
                                HasSubstr("start all ranks with the same options")),
                          ""));
}

TEST(Agreement, KnowsTheModelFromItsPath) {
  EXPECT_THAT(
      said({{options(Json::object()), "4 layers"}, {options(Json::object()), "5 layers"}}),
      ElementsAre("", HasSubstr("the model is \"5 layers\" here, and \"4 layers\" on rank")));
}

TEST(Agreement, LeavesHostsTheirPaths) {
  EXPECT_THAT(said({{options(Json::object(), "/disk0")}, {options(Json::object(), "/disk1")}}),
              ElementsAre("", ""));
}

TEST(Agreement, SaysThatTheOptionsOfRank0AreUnreadable) {
  auto cards = test::hostile_cards();
  std::erase(cards, "{}");  // no options
  for (const std::string& card : cards) {
    const auto store = make_hash_store();
    store->set("options-of-rank-0", card);
    const Error error = test::error_from([&] {
      check_agreement(test::local_world(1, 2), *store, options(Json::object()), "gpt2",
                      Deadline::in_seconds(5));
    });
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << test::shown(card);
    EXPECT_THAT(error.what(), HasSubstr("options: the card of rank 0 is unreadable"));
  }
}

}  // namespace
}  // namespace shoal::command
