// The job's token and the store's handshake. A process without the token can neither read nor
// write, and does not disturb the others.
#include "shoal/runtime/rendezvous/job_token.h"

#include <atomic>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "raw_client.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/digest.h"
#include "shoal/runtime/io/scratch_directory.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/tcp_server.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using testing::RawClient;

const JobToken kToken("one job's secret");

Deadline soon() { return Deadline::in_seconds(20); }

std::string why(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Digest, ComputesPublishedHmacs) {
  // RFC 4231, case 2.
  std::string hex;
  for (const char byte : hmac_sha256("Jefe", "what do ya want for nothing?"))
    hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  EXPECT_EQ(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(random_bytes(4096).size(), 4096u);
  EXPECT_NE(random_bytes(32), random_bytes(32));
}

TEST(JobToken, IsReadFromAPrivateFileOf64Digits) {
  const ScratchDirectory folder;
  const std::string path = folder.path() + "/token";
  const auto write = [&path](std::string_view text, mode_t mode) {
    std::ofstream(path) << text;
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
  };
  const std::string text = JobToken::write_new(path);
  const JobToken token = JobToken::read(path);
  EXPECT_TRUE(token.is_secret());
  EXPECT_EQ(token.proof("x"), JobToken(text.substr(0, 64)).proof("x"));

  write(text, 0640);
  EXPECT_THAT(why([&] { (void)JobToken::read(path); }), HasSubstr("other users may read"));
  for (const std::string& bad : {std::string(), std::string("abc\n"), text.substr(0, 63),
                                 std::string(64, 'g'), text + text, text + "\n"}) {
    write(bad, 0600);
    EXPECT_THAT(why([&] { (void)JobToken::read(path); }), HasSubstr("shoal token")) << bad;
  }
  EXPECT_THAT(why([&] { (void)JobToken::read(folder.path() + "/none"); }), HasSubstr("none"));
}

TEST(JobToken, IsNewEachTime) {
  const ScratchDirectory folder;
  std::set<std::string> all;
  for (int i = 0; i < 20; ++i)
    all.insert(JobToken::write_new(folder / "token" + std::to_string(i)));
  EXPECT_EQ(all.size(), 20u);
  EXPECT_THAT(why([&] { JobToken::write_new(folder / "token0"); }), HasSubstr("exists"));
  EXPECT_THAT(why([&] { JobToken::write_new("/dev/full/token"); }), HasSubstr("/dev/full/token"));
}

// Runs one handshake between a client and a server. True if both accept.
bool meet(const JobToken& clients, const JobToken& servers, std::string_view clients_purpose = "p",
          std::string_view servers_purpose = "p") {
  const handshake::Client client(clients, clients_purpose, 3);
  handshake::Server server(servers, servers_purpose);
  const auto proof = client.answer(server.challenge(client.hello()));
  return proof && server.admits(*proof) && server.rank() == 3;
}

TEST(Handshake, NeedsTheSameTokenAndPurposeOnBothSides) {
  EXPECT_TRUE(meet(kToken, kToken));
  EXPECT_TRUE(meet(JobToken(), JobToken()));
  EXPECT_TRUE(meet(kToken.with("group"), kToken.with("group")));
  EXPECT_FALSE(meet(kToken, JobToken("another")));
  EXPECT_FALSE(meet(kToken, JobToken()));
  EXPECT_FALSE(meet(JobToken(), kToken));
  EXPECT_FALSE(meet(kToken.with("group"), kToken));
  EXPECT_FALSE(meet(kToken, kToken, "store", "control"));
}

TEST(Handshake, AnyChangedBitIsRefused) {
  const handshake::Client client(kToken, "p", 1);
  handshake::Server server(kToken, "p");
  const std::string challenge = server.challenge(client.hello());
  const std::string proof = client.answer(challenge).value();
  ASSERT_TRUE(server.admits(proof));
  for (std::size_t bit = 0; bit < 8 * challenge.size(); ++bit) {
    std::string changed = challenge;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(client.answer(changed)) << bit;
  }
  for (std::size_t bit = 0; bit < 8 * proof.size(); ++bit) {
    std::string changed = proof;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(server.admits(changed)) << bit;
  }
  for (std::size_t bit = 0; bit < 8 * client.hello().size(); ++bit) {  // also the rank's number
    std::string changed = client.hello();
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    handshake::Server other(kToken, "p");
    EXPECT_FALSE(client.answer(other.challenge(changed))) << bit;
  }
  EXPECT_FALSE(server.admits(challenge.substr(handshake::kNonce)));  // the server's own proof
  EXPECT_FALSE(server.admits(""));
}

TEST(Handshake, ARecordingIsRefusedOnOtherSockets) {
  const handshake::Client client(kToken, "p", 1);
  handshake::Server first(kToken, "p"), second(kToken, "p");
  const std::string proof = client.answer(first.challenge(client.hello())).value();
  (void)second.challenge(client.hello());
  EXPECT_TRUE(first.admits(proof));
  EXPECT_FALSE(second.admits(proof));
}

// A server whose store maps "key" to "secret".
struct House {
  TcpStoreServer server{0, "127.0.0.1", kToken};
  std::shared_ptr<Store> store =
      make_tcp_store("127.0.0.1", server.port(), false, 0, soon(), 0, kToken);
  House() { store->set("key", "secret"); }
};

TEST(Door, AClientWithoutTheTokenCannotReadOrWrite) {
  const House house;
  for (const JobToken& wrong : {JobToken(), JobToken("another job's")}) {
    const std::string error = why([&] {
      (void)make_tcp_store("127.0.0.1", house.server.port(), false, 0, Deadline::in_seconds(0.2), 1,
                           wrong);
    });
    EXPECT_THAT(error, HasSubstr("another job token"));
    EXPECT_THAT(error, HasSubstr("SHOAL_JOB_TOKEN_FILE"));
  }
  const std::string read = testing::u32(8) + "\x02" + testing::u32(3) + "key";
  const std::string forged_add =
      testing::u32(16) + "\x04" + testing::u32(3) + "sum" + testing::u32(1) + testing::u32(0);
  const handshake::Client stranger(JobToken(), "store", 0);
  for (const std::string& after : {read, forged_add, std::string(handshake::kProof, '\0') + read,
                                   JobToken().proof("guess") + forged_add}) {
    const RawClient client(house.server.port());
    ASSERT_EQ(client.challenge(stranger.hello()).size(), handshake::kChallenge);
    client.send(after);
    EXPECT_EQ(client.receive(1), "");
    EXPECT_TRUE(client.closed_by_server());
  }
  EXPECT_FALSE(house.store->try_get("sum"));
  EXPECT_EQ(house.store->try_get("key"), "secret");
}

TEST(Door, AReplayedHandshakeIsRefused) {
  const House house;
  const handshake::Client client(kToken, "store", 1);
  const RawClient first(house.server.port());
  const std::string proof = client.answer(first.challenge(client.hello())).value();
  first.send(proof);
  const RawClient second(house.server.port());
  ASSERT_EQ(second.challenge(client.hello()).size(), handshake::kChallenge);
  second.send(proof);
  EXPECT_TRUE(second.closed_by_server());
}

// 100,000 bytes of a request that would be valid. A client without the token must not use memory.
TEST(Door, BytesOfForeignClientsAreNotStored) {
  const House house;
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (int i = 0; i < 40; ++i) {
    strangers.push_back(std::make_unique<RawClient>(house.server.port()));
    strangers.back()->send("SHOALST2" + testing::u32(33'000'000) + std::string(100'000, 'x'));
  }
  for (const auto& stranger : strangers) EXPECT_TRUE(stranger->closed_by_server());
  EXPECT_EQ(house.store->get("key", soon()), "secret");
}

TEST(Door, IdleForeignClientsAreClosedAndDoNotBlockRanks) {
  const House house;
  const auto start = Clock::now();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 300; ++i) idle.push_back(std::make_unique<RawClient>(house.server.port()));
  for (int rank = 1; rank < 5; ++rank)  // ranks are admitted while 64 foreign clients wait
    EXPECT_EQ(make_tcp_store("127.0.0.1", house.server.port(), false, 0, soon(), rank, kToken)
                  ->get("key", soon()),
              "secret");
  EXPECT_LT(seconds_since(start), 4);
  EXPECT_TRUE(idle.front()->closed_by_server());
  EXPECT_LT(seconds_since(start), 4);  // the oldest was closed at once, without a timeout
  // One byte a second does not extend the timeout.
  while (seconds_since(start) < 8) {
    idle.back()->send("S");
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  EXPECT_TRUE(idle.back()->closed_by_server());
}

TEST(Door, OneMoreForeignClientReplacesOnlyOne) {
  const House house;
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 64; ++i) idle.push_back(std::make_unique<RawClient>(house.server.port()));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(house.server.refused_connections(), 0);
  idle.push_back(std::make_unique<RawClient>(house.server.port()));
  EXPECT_TRUE(idle.front()->closed_by_server());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(house.server.refused_connections(), 1);
}

TEST(Door, RanksConnectDespiteForeignClients) {
  TcpStoreServer server(0, "127.0.0.1", kToken);
  std::atomic<int> knocks{0};
  const std::jthread attacker([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const RawClient stranger(server.port());
      stranger.send("SHOALST2");
      ++knocks;
    }
  });
  std::vector<std::future<std::vector<std::string>>> ranks;
  for (int rank = 0; rank < 8; ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto store = make_tcp_store("127.0.0.1", server.port(), false, 8, soon(), rank, kToken);
      return exchange(*store, "x", rank, 8, std::to_string(rank), soon());
    }));
  for (auto& rank : ranks)
    EXPECT_THAT(rank.get(), ::testing::ElementsAre("0", "1", "2", "3", "4", "5", "6", "7"));
  while (knocks < 1000) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const auto store = make_tcp_store("127.0.0.1", server.port(), false, 0, soon(), 0, kToken);
  store->set("still", "here");
  EXPECT_EQ(store->try_get("still"), "here");
}

TEST(Door, AServerWithoutTheTokenLearnsNothing) {
  TcpStoreServer impostor(0, "127.0.0.1");  // it listens where the ranks expect rank 0
  const std::string error = why([&] {
    (void)make_tcp_store("127.0.0.1", impostor.port(), false, 0, Deadline::in_seconds(0.2), 1,
                         kToken);
  });
  EXPECT_THAT(error, HasSubstr("another job token"));
}

}  // namespace
}  // namespace shoal
