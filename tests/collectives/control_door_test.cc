// The listening socket of the control links: a process without the job's token cannot become a rank
// and does not disturb the others.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/transport/control_meeting.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/scratch_directory.h"
#include "shoal/runtime/rendezvous/job_token.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives::transport::control {
namespace {

using ::testing::HasSubstr;

class ControlDoor : public ::testing::Test {
 protected:
  ControlDoor() {
    JobToken::write_new(folder_ / "token");
    EXPECT_EQ(::setenv("SHOAL_JOB_TOKEN_FILE", (folder_ / "token").c_str(), 1), 0);
  }
  ~ControlDoor() override { ::unsetenv("SHOAL_JOB_TOKEN_FILE"); }

  // Rank `rank` of two meets the other one. Returns its number of connections afterwards.
  std::future<std::size_t> meets(int rank, double seconds) {
    return std::async(std::launch::async, [this, rank, seconds] {
      const std::string prefix = "group";
      const auto connections =
          meet({rank, 2, *store_, prefix, Deadline::in_seconds(seconds), seconds});
      return static_cast<std::size_t>(std::ranges::count_if(
          connections, [](const Connection& connection) { return bool(connection.fd); }));
    });
  }
  // Reads the port in rank 0's card and its secret, as a foreign process could from the store.
  void read_card() {
    store_->set("group/came/1", "1");
    const std::string card = store_->get("group/hub", Deadline::in_seconds(20));
    const std::size_t loopbacks = card.rfind("\n127.0.0.1");
    ASSERT_NE(loopbacks, card.npos);
    std::vector<std::string> lines;
    std::string line;
    for (std::istringstream text(card); std::getline(text, line);) lines.push_back(line);
    for (std::size_t i = 1; i + 1 < lines.size() && port_ == 0; ++i)
      if (lines[i + 1].size() == 32) {
        port_ = std::stoi(lines[i]);
        secret_ = lines[i + 1];
      }
    ASSERT_NE(port_, 0) << card;
  }
  Connection knock() {
    Connection connection;
    connection.fd = connect_to("127.0.0.1", port_, Deadline::in_seconds(5));
    EXPECT_TRUE(connection.fd);
    return connection;
  }

  const ScratchDirectory folder_;
  std::shared_ptr<Store> store_ = make_hash_store();
  int port_ = 0;
  std::string secret_;
};

TEST_F(ControlDoor, ForeignProcessesThatKnowTheCardDoNotJoin) {
  auto hub = meets(0, 30);
  read_card();
  for (const JobToken& token :
       {JobToken(), JobToken().with(secret_), JobToken("x").with(secret_)}) {
    Connection stranger = knock();
    const handshake::Client client(token, "control", 1);
    send(stranger, {Kind::hello, 1, client.hello(), 0});
    Message challenge;
    ASSERT_TRUE(await(stranger, challenge, Deadline::in_seconds(10)));
    EXPECT_FALSE(client.answer(challenge.text));  // this process can tell that it has no token
    send(stranger, {Kind::hello, 1, std::string(handshake::kProof, 'x'), 0});
    Message more;
    EXPECT_FALSE(await(stranger, more, Deadline::in_seconds(10)));
  }
  // f990d27 accepted this as rank 1: a hello with the card's secret.
  Connection stranger = knock();
  send(stranger, {Kind::hello, 1, secret_, 0});
  Message more;
  EXPECT_FALSE(await(stranger, more, Deadline::in_seconds(10)));
  EXPECT_EQ(hub.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  auto guest = meets(1, 30);
  EXPECT_EQ(guest.get(), 1u);
  EXPECT_EQ(hub.get(), 1u);
}

TEST_F(ControlDoor, SilentForeignProcessesDelayNoRank) {
  auto hub = meets(0, 30);
  read_card();
  std::vector<Connection> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(knock());
  send(silent.back(), {Kind::heartbeat, 1, std::string(kMostText, 'x'), 0});
  const auto start = Clock::now();
  auto guest = meets(1, 30);
  EXPECT_EQ(guest.get(), 1u);
  EXPECT_EQ(hub.get(), 1u);
  EXPECT_LT(seconds_since(start), 5);  // one after another they would take 2 s each
}

TEST_F(ControlDoor, ARankWithAnotherTokenCountsAsMissing) {
  auto hub = meets(0, 2);
  read_card();
  remove_file(folder_ / "token");
  JobToken::write_new(folder_ / "token");
  auto guest = meets(1, 2);
  try {
    (void)hub.get();
    ADD_FAILURE() << "rank 0 met a rank with another token";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("did not join"));
  }
  try {
    (void)guest.get();
    ADD_FAILURE() << "a rank met rank 0 with another token";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("SHOAL_JOB_TOKEN_FILE"));
  }
}

}  // namespace
}  // namespace shoal::collectives::transport::control
