// Checks that an unreadable card of another rank is refused in one line that names the rank.
#include "shoal/collectives/transport/fabric/cards.h"

#include <limits>
#include <map>

#include "support/hostile_cards.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/communicator.h"
#include "shoal/collectives/transport/control_links.h"
#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/collectives/transport/host_identity.h"
#include "shoal/collectives/transport/peer_links.h"
#include "shoal/runtime/rendezvous/cards.h"

namespace shoal::collectives {
namespace {

using nlohmann::json;
using shoal::test::error_from;
using shoal::test::hostile_cards;
using shoal::test::PlantedStore;
using shoal::test::shown;
using ::testing::AllOf;
using ::testing::HasSubstr;

void expect_refusal(const Error& error, int rank, const std::string& card) {
  EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << shown(card) << "\n" << error.what();
  EXPECT_EQ(error.peer(), rank) << shown(card);
  EXPECT_THAT(error.what(), AllOf(HasSubstr(fmt::format("the card of rank {} is unreadable", rank)),
                                  HasSubstr("run the same build of Shoal on every rank")));
}

// Rank 0 of two. The other rank has published this card and does nothing more.
Error error_of_links(const std::string& card) {
  const auto store = make_hash_store();
  store->set("p/card/1", card);
  return error_from(
      [&] { const transport::PeerLinks links(0, 2, *store, "p", Deadline::in_seconds(0.02)); });
}

TEST(Cards, OfTheSameHostMustBeReadable) {
  using namespace std::string_literals;
  const std::string where = transport::to_card(transport::own_identity());
  auto cards = hostile_cards();
  for (const char* secret : {"", "x", "9223372036854775808", "1 ", "1\r"})
    cards.push_back(fmt::format("{}\n{}\nsocket", where, secret));
  cards.push_back(where + "\n1");
  cards.push_back(where + "\n1\n");
  cards.push_back(where + "\n1\n" + std::string(108, 's'));
  cards.push_back("\0"s + where + "\n1\nsocket");
  for (const std::string& card : cards) expect_refusal(error_of_links(card), 1, card);
  // A valid card; rank 1 then does not join.
  for (const std::string& name : {"socket"s, "\0\n\xff"s})
    EXPECT_THAT(error_of_links(where + "\n1\n" + name).what(), HasSubstr("rank(s) 1 did not join"));
}

// Containers of one machine may report the same host name.
TEST(Cards, OfAnotherNetworkNamespaceAreExplained) {
  transport::HostIdentity there = transport::own_identity();
  there.network = "net:[1]";
  const Error apart = error_of_links(transport::to_card(there) + "\n1\nsocket");
  EXPECT_EQ(apart.code(), ErrorCode::unavailable);
  EXPECT_THAT(apart.what(),
              AllOf(HasSubstr("ranks 0 and 1 both say that their host is '" + there.name + "'"),
                    HasSubstr("different network namespaces (containers)"), HasSubstr("net:[1]"),
                    HasSubstr("--network host"), HasSubstr("SHOAL_HOST_NAME")));
  there.machine = "another";
  EXPECT_THAT(error_of_links(transport::to_card(there) + "\n1\nsocket").what(),
              AllOf(HasSubstr("run on different machines"), HasSubstr("SHOAL_HOST_NAME")));
}

// Rank 1 of two. Rank 0 has published this card and has gone.
Error error_of_hub(const std::string& card) {
  const auto store = make_hash_store();
  store->set("c/came/0", "1");
  store->set("c/hub", card);
  return error_from([&] {
    const transport::ControlLinks links(1, 2, *store, "c", Deadline::in_seconds(0.02), 0.01);
  });
}

TEST(Cards, OfControlLinksMustBeReadable) {
  const std::string where = transport::to_card(transport::own_identity());
  const auto whole = [&](const std::string& port, const std::string& addresses) {
    return fmt::format("{}\n{}\nsecret\n{}", where, port, addresses);
  };
  auto cards = hostile_cards();
  for (const char* port : {"", "0", "-1", "65536", "9223372036854775808", "80x"})
    cards.push_back(whole(port, "127.0.0.1\n::1"));
  for (const char* addresses : {"", "127.0.0.1", "127.0.0.1\n", "nowhere\n127.0.0.1\n::1",
                                "127.0.0.1 ::1", "256.0.0.1\n::1"})
    cards.push_back(whole("1", addresses));
  for (const std::string& card : cards) expect_refusal(error_of_hub(card), 0, card);
  EXPECT_THAT(
      error_of_hub(whole("1", "127.0.0.1\n::1")).what(),
      AllOf(HasSubstr("rank 0 on '" + transport::own_identity().name + "' did not answer at"),
            HasSubstr("127.0.0.1 ("), HasSubstr("port 1")));
}

TEST(Cards, OfHostsMustBeReadable) {
  using namespace std::string_literals;
  for (const std::string& card : {""s, "a\0b"s, "a\nb"s, std::string(1 << 20, 'a')}) {
    const auto store = make_hash_store();
    PlantedStore planted(*store, "/host/1", card);
    CommunicatorOptions options;
    options.deadline_seconds = 5;
    expect_refusal(error_from([&] {
                     (void)make_communicator(shoal::test::local_world(0, 2), planted, options);
                   }),
                   1, card);
  }
}

fabric::Survey a_survey() {
  return {.provider = "tcp",
          .host = "a",
          .local_rank = 1,
          .local_size = 2,
          .sites = {{"eth0", "10.0.0.0/8", 0}, {"eth1", "10.1.0.0/16", 1}}};
}

fabric::Opened an_opening() {
  return {.networks = {"10.0.0.0/8", "10.1.0.0/16"},
          .addresses = {std::string(16, '\x02'), std::string(16, '\xff')},
          .preferred = {1},
          .largest_message = 1 << 20,
          .largest_write = 1 << 30,
          .eager = 8192,
          .stripe = 1 << 17,
          .receives = 1024,
          .credits = 8,
          .unmatched = 32,
          .writes = true,
          .magic = 0xffffffff,
          .lane = std::string(28, '\0')};
}

Error error_of_survey(const json& card) {
  return error_from([&] {
    read_card(1, "fabric", {}, [&](std::string_view) { return fabric::parse_survey(card, 2); });
  });
}
Error error_of_opening(const json& card) {
  return error_from([&] {
    read_card(1, "fabric", {}, [&](std::string_view) { return fabric::parse_opened(card); });
  });
}

TEST(FabricCards, ThatAreCompleteAreAccepted) {
  const fabric::Survey survey = fabric::parse_survey(fabric::to_card(a_survey()), 2);
  EXPECT_EQ(survey.sites, a_survey().sites);
  EXPECT_EQ(survey.local_rank, 1);
  const fabric::Opened opened = fabric::parse_opened(fabric::to_card(an_opening()));
  EXPECT_EQ(opened.addresses, an_opening().addresses);
  EXPECT_EQ(opened.lane, an_opening().lane);
  EXPECT_EQ(opened.magic, an_opening().magic);
}

// Checks the card without each field, and with a wrong value in each field.
template <typename ErrorOf>
void expect_every_field_to_matter(const json& whole, const ErrorOf& error_of) {
  for (const auto& [name, value] : whole.items()) {
    json card = whole;
    card.erase(name);
    expect_refusal(error_of(card), 1, card.dump());
    std::vector<json> others{nullptr, {{"a", 1}}};
    if (value.is_number()) others.insert(others.end(), {-1, 9223372036854775808u, 1.5, true, "1"});
    if (value.is_number() && value < 2048)  // an int
      others.insert(others.end(), {std::numeric_limits<std::int64_t>::max(), 2147483648});
    if (value.is_array()) {
      others.push_back("text");
      for (const json& element : std::vector<json>{nullptr, -1, 1e300, 99, "z", json::array()})
        others.push_back(json::array({element}));
    }
    if (name == "networks") std::erase(others, json::array({"z"}));
    for (const json& other : others) {
      card[name] = other;
      expect_refusal(error_of(card), 1, card.dump());
    }
  }
}

TEST(FabricCards, WithAFieldOfAnotherTypeNameTheirRank) {
  expect_every_field_to_matter(fabric::to_card(a_survey()), error_of_survey);
  expect_every_field_to_matter(fabric::to_card(an_opening()), error_of_opening);
  expect_every_field_to_matter(fabric::to_card(a_survey()).at("sites").at(0), [](const json& site) {
    json card = fabric::to_card(a_survey());
    card["sites"].push_back(site);
    return error_of_survey(card);
  });
  json card = fabric::to_card(a_survey());
  card["local_rank"] = 2;
  expect_refusal(error_of_survey(card), 1, card.dump());
  card["local_size"] = 3;  // more ranks than the job has
  expect_refusal(error_of_survey(card), 1, card.dump());
}

TEST(FabricCards, WithInvalidAddressesNameTheirRank) {
  const std::string address = fabric::to_card(an_opening())["addresses"][0];
  for (const std::string& other :
       {address.substr(1), std::string("zz"), std::string(address.size(), 'g'),
        std::string(address.size(), '-'), "+1" + address, std::string(1 << 20, '0')}) {
    json card = fabric::to_card(an_opening());
    card["lane"] = other;
    expect_refusal(error_of_opening(card), 1, card.dump());
    if (other.size() == 1 << 20) continue;  // connect.cc compares it with its own
    card = fabric::to_card(an_opening());
    card["addresses"][0] = other;
    expect_refusal(error_of_opening(card), 1, card.dump());
  }
  json card = fabric::to_card(an_opening());
  for (int i = 0; i < 100; ++i) card["networks"].push_back("n");
  expect_refusal(error_of_opening(card), 1, card.dump());
}

// The same through an endpoint. It is rank 0 of two; rank 1 has published its cards and does
// nothing more.
class FabricEndpointCards : public ::testing::Test {
 protected:
  void SetUp() override {
    if (fabric::fabric_providers().empty()) GTEST_SKIP() << "this build has no libfabric";
    shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
      (void)join(world.rank, store, 20);
      if (world.rank != 0) return;
      for (const char* round : {"survey", "opened"})
        whole_[round] =
            json::parse(store.get(fmt::format("x/{}/1", round), Deadline::in_seconds(20)));
    });
  }

  static std::unique_ptr<transport::Endpoint> join(int rank, Store& store, double seconds) {
    fabric::FabricOptions options;
    options.provider = "tcp";
    return fabric::make_fabric_endpoint(options, rank, 2, rank, 2, store, "x",
                                        Deadline::in_seconds(seconds));
  }

  Error error_of(const std::string& survey, const std::string& opened) const {
    const auto store = make_hash_store();
    store->set("x/survey/1", survey);
    store->set("x/opened/1", opened);
    return error_from([&] { (void)join(0, *store, 0.02); });
  }

  std::map<std::string, json> whole_;
};

TEST_F(FabricEndpointCards, NameTheirRank) {
  const std::string survey = whole_["survey"].dump(), opened = whole_["opened"].dump();
  for (const char* card : {"", "{}", "[]", "9223372036854775808", R"({"failed": 7})"})
    expect_refusal(error_of(card, opened), 1, card);
  for (const std::string& card : {std::string(), opened.substr(1)})
    expect_refusal(error_of(survey, card), 1, card);
  // libfabric would read past the end of this address.
  json card = whole_["opened"];
  card["addresses"][0] = "00";
  expect_refusal(error_of(survey, card.dump()), 1, card.dump());
  EXPECT_THAT(error_of(survey, opened).what(), HasSubstr("rank(s) 1 did not join in time"));
}

}  // namespace
}  // namespace shoal::collectives
