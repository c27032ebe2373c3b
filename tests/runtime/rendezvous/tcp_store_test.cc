// The tcp store with late, dead and hostile peers, and with ranks as processes.
#include <future>
#include <random>
#include <thread>

#include "raw_client.h"
#include "support/free_port.h"
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/tcp_server.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::RawClient;
using testing::u32;

Deadline soon() { return Deadline::in_seconds(20); }

template <typename Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::internal, "nothing was thrown"};
}

TEST(TcpStore, HostileBytesCostOnlyTheirOwnConnection) {
  TcpStoreServer server(0, "127.0.0.1");
  const auto store = make_tcp_store("127.0.0.1", server.port(), false, 0, soon());
  store->set("key", "value");
  const std::vector<std::string> attacks = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",  // these two send no greeting
      std::string(100, '\0'),
      u32(0),                                                           // an empty frame
      u32(0xffffffff),                                                  // announces 4 GiB
      u32(1) + "\x63",                                                  // an unknown operation
      u32(5) + "\x01" + u32(0),                                         // an empty key
      u32(5) + "\x01" + u32(0xfffffff0),                                // a key beyond the frame
      u32(10) + "\x01" + u32(1) + "k" + u32(9),                         // a value beyond the frame
      u32(7) + "\x02" + u32(1) + "kx",                                  // extra bytes
      u32(6) + "\x03" + u32(1) + "z" + u32(6) + "\x03" + u32(1) + "z",  // asks during a wait
  };
  for (std::size_t i = 0; i < attacks.size(); ++i) {
    const RawClient attacker(server.port());
    ASSERT_TRUE(attacker.connected());
    if (i >= 2) {
      ASSERT_TRUE(attacker.greet());
    }
    attacker.send(attacks[i]);
    EXPECT_TRUE(attacker.closed_by_server()) << "attack " << i;
    EXPECT_EQ(store->get("key", soon()), "value") << "attack " << i;
  }
  EXPECT_EQ(server.refused_connections(), static_cast<int>(attacks.size()));
}

TEST(TcpStore, TruncatedAndRandomBytesDoNoHarm) {
  TcpStoreServer server(0, "127.0.0.1");
  const auto store = make_tcp_store("127.0.0.1", server.port(), false, 0, soon());
  std::mt19937 random(7);
  std::vector<std::unique_ptr<RawClient>> hanging;
  for (int i = 0; i < 200; ++i) {
    auto attacker = std::make_unique<RawClient>(server.port());
    if (i % 2) {
      ASSERT_TRUE(attacker->greet());
    }
    std::string bytes;
    if (i % 4 == 1) bytes += u32(static_cast<std::uint32_t>(random() % 64));
    for (std::size_t n = random() % 80; n > 0; --n) bytes += static_cast<char>(random());
    attacker->send(bytes);
    if (i % 5 == 0) hanging.push_back(std::move(attacker));  // stays open within a request
  }
  store->set("key", std::string(1'000'000, 'x'));
  EXPECT_EQ(store->get("key", soon()).size(), 1'000'000u);
}

TEST(TcpStore, ClientsMayConnectBeforeTheServerExists) {
  const int port = testing::free_port();
  auto early = std::async(std::launch::async, [port] {
    return make_tcp_store("localhost", port, false, 2, soon())->get("k", soon());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  const auto server = make_tcp_store("localhost", port, true, 2, soon());
  server->set("k", "hello");
  EXPECT_EQ(early.get(), "hello");
}

TEST(TcpStore, TheServingRankMayLeaveFirst) {
  const auto deadline = Deadline::in_seconds(10);
  auto server = make_tcp_store("127.0.0.1", 0, true, 0, deadline);
  server->set("word", "still here");
  const std::string name = server->name();
  const int port = std::stoi(name.substr(name.rfind(':') + 1));
  auto client = make_tcp_store("127.0.0.1", port, false, 0, deadline);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_EQ(client->get("word", deadline), "still here");
    client.reset();
  });
  server.reset();
  other.join();
}

TEST(TcpStore, AMissingServerIsATimeoutThatNamesTheAddress) {
  const int port = testing::free_port();
  const auto start = Clock::now();
  const Error error = error_of(
      [&] { (void)make_tcp_store("127.0.0.1", port, false, 2, Deadline::in_seconds(0.3)); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(port)));
  EXPECT_THAT(error.what(), HasSubstr("refused"));
  EXPECT_THAT(error.what(), HasSubstr("MASTER_ADDR"));
  EXPECT_LT(seconds_since(start), 8);
}

TEST(TcpStore, AnUnresolvableNameIsReported) {
  const Error error = error_of([&] {
    (void)make_tcp_store("no-such-host.invalid", 29500, false, 1, Deadline::in_seconds(0.2));
  });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("no-such-host.invalid"));
}

TEST(TcpStore, MissingRanksAreCounted) {
  const Error error =
      error_of([&] { (void)make_tcp_store("127.0.0.1", 0, true, 3, Deadline::in_seconds(0.3)); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("1 of 3 ranks joined"));
  EXPECT_THAT(error.what(), Not(HasSubstr("missing"))) << "the ranks' numbers are not known";
}

// Rank 0, whose deadline comes first, ends the server.
TEST(TcpStore, RanksWithALaterDeadlineLearnWhoIsMissing) {
  const int port = testing::free_port();
  auto later = std::async(std::launch::async, [port] {
    return error_of(
        [port] { make_tcp_store("127.0.0.1", port, false, 3, Deadline::in_seconds(60), 1); });
  });
  const Error first =
      error_of([port] { make_tcp_store("127.0.0.1", port, true, 3, Deadline::in_seconds(1), 0); });
  EXPECT_THAT(first.what(), HasSubstr("missing: rank 2"));
  EXPECT_THAT(later.get().what(), HasSubstr("missing: rank 2"));
}

TEST(TcpStore, MissingRanksAreNamed) {
  const Error error = error_of(
      [&] { (void)make_tcp_store("127.0.0.1", 0, true, 3, Deadline::in_seconds(0.3), 0); });
  EXPECT_THAT(error.what(), HasSubstr("; missing: ranks 1, 2"));
}

TEST(TcpStore, ATakenPortIsNamed) {
  TcpStoreServer first(0, "127.0.0.1");
  const Error error = error_of([&] { TcpStoreServer second(first.port(), "127.0.0.1"); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_THAT(error.what(), HasSubstr(std::to_string(first.port())));
  EXPECT_THAT(error.what(), HasSubstr("MASTER_PORT"));
}

TEST(TcpStore, AnotherServiceOnThePortIsReported) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  std::thread web([listener] {
    const int fd = ::accept(listener, nullptr, nullptr);
    (void)!::send(fd, "HTTP/1.1 400 Bad Request\r\n", 26, MSG_NOSIGNAL);
    ::shutdown(fd, SHUT_WR);
    ::close(listener);
    char block[64];
    (void)!::recv(fd, block, sizeof block, 0);
    ::close(fd);
  });
  const Error error = error_of([&] {
    (void)make_tcp_store("127.0.0.1", ntohs(address.sin_port), false, 1, Deadline::in_seconds(0.0));
  });
  web.join();
  EXPECT_THAT(error.what(), HasSubstr("not a Shoal store"));
}

TEST(TcpStore, ServesIpv6) {
  std::unique_ptr<TcpStoreServer> server;
  try {
    server = std::make_unique<TcpStoreServer>(0, "::1");
  } catch (const Error& error) {
    GTEST_SKIP() << "no IPv6 loopback here: " << error.what();
  }
  const auto store = make_tcp_store("[::1]", server->port(), false, 0, soon());
  store->set("k", "v6");
  EXPECT_EQ(store->get("k", soon()), "v6");
  EXPECT_THAT(store->name(), HasSubstr("[::1]:"));
}

TEST(TcpStore, WildcardServesIpv4) {
  TcpStoreServer server(0);
  const auto store = make_tcp_store("127.0.0.1", server.port(), false, 0, soon());
  store->set("k", "v");
  EXPECT_EQ(store->try_get("k"), "v");
}

TEST(TcpStore, StoppedServerIsPeerLostForWaitersAndCallers) {
  auto server = std::make_unique<TcpStoreServer>(0, "127.0.0.1");
  const auto store = make_tcp_store("127.0.0.1", server->port(), false, 0, soon());
  auto waiting = std::async(std::launch::async,
                            [&] { return error_of([&] { (void)store->get("never", soon()); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto start = Clock::now();
  server.reset();
  const Error error = waiting.get();
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_THAT(error.what(), HasSubstr("'never'"));
  EXPECT_LT(seconds_since(start), 5);
}

// Runs ranks as processes. Children end with _exit, because gtest's state belongs to the parent.
template <typename Body>
pid_t in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 1;
    try {
      status = body();
    } catch (...) {
      status = 2;
    }
    ::_exit(status);
  }
  return child;
}

int exit_status(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

TEST(TcpStore, ProcessRanksMeet) {
  constexpr int kRanks = 4;
  const int port = testing::free_port();
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank)
    children.push_back(in_child([rank, port] {
      const auto store = make_tcp_store("127.0.0.1", port, rank == 0, kRanks, soon());
      const auto values = exchange(*store, "x", rank, kRanks, std::to_string(rank * rank), soon());
      const bool right = values == std::vector<std::string>{"0", "1", "4", "9"};
      store->add("left", 1);
      if (rank == 0)
        while (store->get("left", soon()) != std::to_string(kRanks)) ::usleep(1000);
      return right ? 0 : 2;
    }));
  for (const pid_t child : children) EXPECT_EQ(exit_status(child), 0);
}

TEST(TcpStore, KilledServerIsPeerLostInSeconds) {
  const int port = testing::free_port();
  const pid_t server = in_child([port] {
    const TcpStoreServer serving(port, "127.0.0.1");
    ::pause();
    return 0;
  });
  const auto store = make_tcp_store("127.0.0.1", port, false, 0, soon());
  store->set("k", "v");
  std::thread killer([server] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ::kill(server, SIGKILL);
  });
  const auto start = Clock::now();
  const Error error = error_of([&] { (void)store->get("never", Deadline::never()); });
  killer.join();
  (void)exit_status(server);
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_LT(seconds_since(start), 8);
  // Its port refuses connections, so the call must not wait.
  const auto again = Clock::now();
  EXPECT_EQ(error_of([&] { store->set("k", "w"); }).code(), ErrorCode::peer_lost);
  EXPECT_LT(seconds_since(again), 3);
}

TEST(FileStore, ProcessRanksMeetAndAKilledOneLeavesNoLock) {
  char directory[] = "/tmp/shoal-store-test-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const pid_t victim = in_child([&] {
    const auto store = make_file_store(directory, "job");
    for (;;) store->add("n", 1);  // holds the lock most of the time
    return 0;
  });
  const auto store = make_file_store(directory, "job");
  (void)store->get("n", soon());
  ::kill(victim, SIGKILL);
  (void)exit_status(victim);
  const std::int64_t before = store->add("n", 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank)
    children.push_back(in_child([&] {
      const auto mine = make_file_store(directory, "job");
      for (int i = 0; i < 30; ++i) mine->add("n", 1);
      barrier(*mine, "end", 3, soon());
      return mine->add("n", 0) >= before + 90 ? 0 : 2;
    }));
  for (const pid_t child : children) EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(store->add("n", 0), before + 90);
  (void)!std::system(("rm -rf " + std::string(directory)).c_str());
}

}  // namespace
}  // namespace shoal
