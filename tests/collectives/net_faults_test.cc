// Faults in the engine over an Endpoint, with ranks as threads over the loopback, and deaths that
// its control connections report.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <thread>

#include "loopback_ranks.h"
#include "support/calls.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shoal/collectives/diagnosis/diagnose.h"
#include "shoal/collectives/transport/control_connection.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/forwarding_store.h"
#include "shoal/runtime/rendezvous/job_token.h"

namespace shoal::collectives {
namespace {

using shoal::test::sleep_seconds;
using shoal::test::sum;
using shoal::test::with_deadline;
using test::LoopbackRanks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(NetFaults, AMismatchIsNamedOnEveryRank) {
  const LoopbackRanks loopback(3);
  const auto errors = shoal::test::thread_rank_errors(3, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(10));
    std::vector<float> values(world.rank == 1 ? 99 : 100);
    try {
      sum(*c, values);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::mismatch);
      EXPECT_THROW(c->barrier(), Error);  // later calls throw the same failure
      throw;
    }
  });
  for (const auto& error : errors)
    EXPECT_THAT(error, AllOf(HasSubstr("rank 1 called all_reduce of 99 f32, sum"),
                             HasSubstr("called all_reduce of 100 f32, sum")));
}

TEST(NetFaults, EveryRankDumpsItsGroups) {
  const shoal::testing::TemporaryDirectory directory;
  const LoopbackRanks loopback(3);
  (void)shoal::test::thread_rank_errors(3, [&](const World& world, Store& store) {
    CommunicatorOptions options = with_deadline(2);
    options.flight_directory = directory.path();
    const auto c = loopback.communicator(world, store, options);
    const auto part = c->split(world.rank == 2 ? 1 : 0, 0);
    std::vector<float> values(5000);
    sum(*c, values);
    if (part->size() == 2) sum(*part, values);
    if (world.rank == 1) {  // never makes the call that the others wait for
      for (const char* other : {"given up/0", "given up/2"})
        store.get(other, Deadline::in_seconds(20));
      c->abort("the others gave up");
      return;
    }
    try {
      sum(*c, values);
    } catch (const Error&) {
      store.set(fmt::format("given up/{}", world.rank), "");
      throw;
    }
  });
  std::vector<FlightDump> dumps;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
    dumps.push_back(read_flight_dump(entry.path()));
  const auto found = diagnose(dumps);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].group, "world");
  EXPECT_EQ(found[0].verdict, Verdict::desync);
  EXPECT_EQ(found[0].sequence, 3U);  // the split's own exchange came first
  EXPECT_THAT(found[0].culprits, ::testing::ElementsAre(1));
  EXPECT_THAT(found[0].summary,
              HasSubstr("all_reduce of 5000 f32, sum, which ranks 0, 2 wait for"));
  EXPECT_EQ(found[1].group, "world/split/0/0");
  EXPECT_EQ(found[1].verdict, Verdict::fine);
}

TEST(NetFaults, EveryRankDumpsItsMessages) {
  const shoal::testing::TemporaryDirectory directory;
  const LoopbackRanks loopback(2);
  (void)shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
    CommunicatorOptions options = with_deadline(2);
    options.flight_directory = directory.path();
    const auto c = loopback.communicator(world, store, options);
    std::vector<float> values(4);
    if (world.rank == 1) c->send(values.data(), 4, DType::f32, 0)->wait();
    if (world.rank == 0) c->recv(values.data(), 4, DType::f32, 1)->wait();
    try {
      if (world.rank == 0) c->recv(values.data(), 4, DType::f32, 1)->wait();
    } catch (const Error&) {
      store.set("given up", "");
      throw;
    }
    store.get("given up", Deadline::in_seconds(20));
    c->barrier()->wait();
  });
  std::vector<FlightDump> dumps;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
    dumps.push_back(read_flight_dump(entry.path()));
  ASSERT_EQ(dumps.size(), 2U);
  EXPECT_THAT(diagnose(dumps)[0].summary,
              HasSubstr("rank 1 never called the send that recv of 4 f32 from rank 1 (message 2) "
                        "of rank 0 waits for"));
}

TEST(NetFaults, AStalledRankIsNamedWithTheMessageThatIsMissing) {
  const LoopbackRanks loopback(3);
  const auto start = Clock::now();
  const auto errors = shoal::test::thread_rank_errors(3, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(1));
    c->barrier()->wait();
    if (world.rank == 1) sleep_seconds(2);
    std::vector<float> values(5000);
    sum(*c, values);
  });
  EXPECT_LT(seconds_since(start), 4);
  for (const int rank : {0, 2})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("all_reduce of 5000 f32, sum (#2)"), HasSubstr("within 1."),
                      HasSubstr("missing: rank(s) 1: "), HasSubstr("rank 1 (instruction")));
}

// Most ranks wait for others that wait for it.
TEST(NetFaults, ARankThatDoesNotMakeACallIsNamedByAll) {
  const LoopbackRanks loopback(8);
  const auto errors = shoal::test::thread_rank_errors(8, [&](const World& world, Store& store) {
    CommunicatorOptions options = with_deadline(4);
    options.algorithm = "ring";
    const auto c = loopback.communicator(world, store, options);
    if (world.rank == 5) sleep_seconds(6);
    std::vector<float> values(5000);
    sum(*c, values);
  });
  for (std::size_t rank = 0; rank < errors.size(); ++rank)
    if (rank != 5) EXPECT_THAT(errors[rank], HasSubstr("rank(s) 5 did not call it")) << rank;
}

TEST(NetFaults, ASilentlyLostPeerIsNamedByTheDeadline) {
  const LoopbackRanks loopback(3);
  const transport::FaultOptions faults{1, 0, 0, 1};
  // Rank 2 is lost to the others and gets no answer either, so without a longer deadline it might
  // report first.
  const auto errors = shoal::test::thread_rank_errors(3, [&](const World& world, Store& store) {
    const auto c =
        loopback.communicator(world, store, with_deadline(world.rank == 2 ? 3 : 1), &faults);
    c->barrier()->wait();
    if (world.rank == 2) loopback.control->lose_silently(2);
    std::vector<float> values(5000);
    for (int i = 0; i < 1000; ++i) sum(*c, values);
  });
  for (const int rank : {0, 1})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr("missing: rank(s)"));
  EXPECT_THAT(errors[0] + errors[1], HasSubstr("rank 2 ("));
}

TEST(NetFaults, ALostConnectionFailsEveryOperationWithThePeersName) {
  const LoopbackRanks loopback(2);
  const transport::FaultOptions faults{1, 0, 0, 1};
  const auto errors = shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(10), &faults);
    c->barrier()->wait();
    std::vector<float> a(5000), b(5000);
    if (world.rank == 1) {
      sleep_seconds(0.2);
      loopback.control->lose_loudly(1);
      sleep_seconds(1.5);
      return;
    }
    auto first = c->all_reduce(a.data(), a.data(), 5000, DType::f32, ReduceOp::sum);
    auto second = c->all_reduce(b.data(), b.data(), 5000, DType::f32, ReduceOp::sum);
    EXPECT_THROW(second->wait(), Error);
    first->wait();
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1"));
}

// At its end an endpoint waits for outstanding messages. If a peer is gone, that costs a second.
TEST(NetFaults, OnlyAnEndpointWithALostPeerIsAbandoned) {
  const LoopbackRanks lost(2), left(2);
  const transport::FaultOptions faults{1, 0, 0, 1};
  (void)shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
    const auto c = lost.communicator(world, store, with_deadline(10), &faults);
    lost.control->lose_loudly(1);
    if (world.rank == 1) return (void)store.get("failed", Deadline::in_seconds(20));
    EXPECT_THROW(c->barrier()->wait(), Error);
    EXPECT_GE(lost.control->abandoned(), 1);
    store.set("failed", "");
  });
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    // Rank 1 waits this long for rank 0 at its end, in vain.
    auto c = left.communicator(world, store, with_deadline(world.rank == 1 ? 3 : 20), &faults);
    c->barrier()->wait();
    if (world.rank == 0) store.get("rank 1 has left", Deadline::in_seconds(20));
    EXPECT_EQ(left.control->abandoned(), 0);
    c.reset();
    EXPECT_EQ(left.control->abandoned(), world.rank == 0 ? 1 : 0);
    if (world.rank == 1) store.set("rank 1 has left", "");
  });
}

TEST(NetFaults, ARankThatLeavesIsNamed) {
  const LoopbackRanks loopback(2);
  const auto start = Clock::now();
  const auto errors = shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(10));
    std::vector<float> values(8);
    sum(*c, values);
    if (world.rank == 1) return;
    sum(*c, values);
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 left the group"), HasSubstr("all_reduce of 8")));
  EXPECT_LT(seconds_since(start), 4);
}

// Rank 0 must forward news even after it has dropped its communicator.
TEST(NetFaults, AreReportedAfterRankZeroHasLeft) {
  const LoopbackRanks loopback(3);
  const auto errors = shoal::test::thread_rank_errors(3, [&](const World& world, Store& store) {
    // Rank 0 waits this long for the others at its end.
    auto c = loopback.communicator(world, store, with_deadline(world.rank == 0 ? 2 : 30));
    auto rest = c->split(world.rank == 0 ? -1 : 0, world.rank);
    c.reset();
    if (world.rank == 0) return store.set("rank 0 has left", "");
    rest->barrier()->wait();
    store.get("rank 0 has left", Deadline::in_seconds(20));
    const auto start = Clock::now();
    if (world.rank == 2) rest->abort("loss is NaN");
    try {
      rest->barrier()->wait();
    } catch (const Error&) {
      EXPECT_LT(seconds_since(start), 15);  // half the deadline
      throw;
    }
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_THAT(errors[1], HasSubstr("rank 2 aborted: loss is NaN"));
}

TEST(NetFaults, AbortEndsWaitsOnAllRanksAndReportsWhy) {
  const LoopbackRanks loopback(3);
  const auto errors = shoal::test::thread_rank_errors(3, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(30));
    c->barrier()->wait();
    const auto start = Clock::now();
    if (world.rank == 2) {
      sleep_seconds(0.1);
      c->abort("loss is NaN");
    }
    try {
      c->barrier()->wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::aborted);
      EXPECT_EQ(error.peer(), 2);
      EXPECT_LT(seconds_since(start), 1.5);
      throw;
    }
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("rank 2 aborted: loss is NaN"));
}

TEST(NetFaults, AbortFromAnotherThreadEndsTheRanksOwnWait) {
  const LoopbackRanks loopback(2);
  const auto errors = shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
    const auto c = loopback.communicator(world, store, with_deadline(30));
    c->barrier()->wait();
    std::jthread watcher;
    if (world.rank == 0)
      watcher = std::jthread([&] {
        sleep_seconds(0.1);
        c->abort("watchdog");
      });
    else
      sleep_seconds(0.3);
    c->barrier()->wait();
  });
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("rank 0 aborted: watchdog"));
}

TEST(NetFaults, AWorkOutlivesItsCommunicatorWithAnError) {
  const LoopbackRanks loopback(2);
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    auto c = loopback.communicator(world, store, with_deadline(20));
    c->barrier()->wait();
    if (world.rank == 1) return;
    std::vector<float> values(100);
    const auto work = c->all_reduce(values.data(), values.data(), 100, DType::f32, ReduceOp::sum);
    c.reset();
    EXPECT_THROW(work->wait(), Error);
  });
}

// Counts calls to progress().
class Watched final : public transport::Endpoint {
 public:
  Watched(std::unique_ptr<transport::Endpoint> inner, std::atomic<int>& looks)
      : inner_(std::move(inner)), looks_(looks) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return "watched"; }
  int rails() const override { return 1; }
  std::int64_t eager_bytes() const override { return inner_->eager_bytes(); }
  void begin(transport::OperationKey key, const Signature& signature) override {
    inner_->begin(key, signature);
  }
  void end(transport::OperationKey key) override { inner_->end(key); }
  void post_send(int peer, transport::MessageTag tag, const void* data, std::int64_t bytes,
                 transport::Completion& completion) override {
    inner_->post_send(peer, tag, data, bytes, completion);
  }
  void post_receive(int peer, transport::MessageTag tag, void* data, std::int64_t bytes,
                    transport::Completion& completion) override {
    inner_->post_receive(peer, tag, data, bytes, completion);
  }
  bool progress() override {
    ++looks_;
    return inner_->progress();
  }
  void sleep(int microseconds) override { inner_->sleep(microseconds); }
  std::unique_ptr<transport::MemoryRegion> register_memory(void* data,
                                                           std::int64_t bytes) override {
    return inner_->register_memory(data, bytes);
  }
  transport::EndpointStatistics statistics() const override { return inner_->statistics(); }

 private:
  std::unique_ptr<transport::Endpoint> inner_;
  std::atomic<int>& looks_;
};

// Messages that it has sent may still be in flight. With manual progress only their sender moves
// them.
TEST(NetFaults, AFinishedRankDrivesItsEndpointUntilTheOthersFinish) {
  const LoopbackRanks loopback(2);
  std::atomic<int> looks{0};
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto deadline = Deadline::in_seconds(20);
    std::unique_ptr<transport::Endpoint> endpoint = loopback.endpoint(world.rank);
    if (world.rank == 0) endpoint = std::make_unique<Watched>(std::move(endpoint), looks);
    auto c = net::make_net_communicator(
        std::move(endpoint),
        std::make_unique<transport::ControlLinks>(world.rank, world.size, store, "links", deadline),
        world.local_size, with_deadline(20));
    c->barrier()->wait();
    if (world.rank == 1) {  // rank 0 must make progress until rank 1 leaves
      store.get("leaving", deadline);
      const int before = looks.load();
      const auto patience = Deadline::in_seconds(4);
      while (looks.load() < before + 10 && !patience.passed()) sleep_seconds(0.001);
      EXPECT_GE(looks.load(), before + 10);
    } else {
      sleep_seconds(0.05);  // by now the progress thread sleeps
      store.set("leaving", "");
    }
    c.reset();
  });
}

// Uses processes, so that one can be killed. Only control connections link them.
TEST(ControlLinks, ReportADeathAtOnce) {
  shoal::test::ProcessRanks ranks(4, [](const World& world, Store& store) {
    const transport::ControlLinks links(world.rank, world.size, store, "c",
                                        Deadline::in_seconds(20));
    shoal::test::ProcessRanks::say_ready(store);
    const auto until = Deadline::in_seconds(8);
    while (!links.news() && !until.passed()) sleep_seconds(0.002);
    const auto news = links.news();
    throw Error(ErrorCode::internal, news ? fmt::format("lost {}", news->rank) : "nothing");
  });
  ASSERT_TRUE(ranks.wait_until_ready(20, 4));
  const auto killed = Clock::now();
  ranks.send_signal(2, SIGKILL);
  const auto outcomes = ranks.wait(10);
  EXPECT_LT(seconds_since(killed), 5);  // an unreachable host takes 15
  for (const int rank : {0, 1, 3})
    EXPECT_THAT(outcomes[static_cast<std::size_t>(rank)].error, HasSubstr("lost "));
  EXPECT_THAT(outcomes[1].error, HasSubstr("lost 2"));
}

// A stopped process is not dead: its host answers for it, and it may resume.
TEST(ControlLinks, DistinguishAStoppedProcessFromADeadOne) {
  shoal::test::ProcessRanks ranks(3, [](const World& world, Store& store) {
    const auto patience = Deadline::in_seconds(25);
    const double reach = 1.0;
    const transport::ControlLinks links(world.rank, world.size, store, "c", patience, reach);
    const auto all_did = [&](const std::string& what, std::initializer_list<int> whose) {
      store.set(fmt::format("{}/{}", what, world.rank), std::to_string(getpid()));
      for (const int rank : whose) store.get(fmt::format("{}/{}", what, rank), patience);
    };
    all_did("joined", {0, 1, 2});
    const auto silence = [&] { return links.silent_seconds(2).value_or(0); };
    if (world.rank == 2) {
      std::raise(SIGSTOP);
    } else {
      // Longer than the time after which a host counts as unreachable.
      while (silence() < 1.5 * reach && !patience.passed()) sleep_seconds(0.01);
      all_did("missed it", {0, 1});
      const int stopped = std::stoi(store.get("joined/2", patience));
      if (world.rank == 0) kill(stopped, SIGCONT);
      while (silence() > 0 && !patience.passed()) sleep_seconds(0.01);
    }
    const auto news = links.news();
    all_did("looked", {0, 1, 2});
    if (news) throw Error(ErrorCode::internal, fmt::format("lost {}", news->rank));
  });
  for (const auto& outcome : ranks.wait(30)) EXPECT_EQ(outcome.exit_status, 0) << outcome.error;
}

TEST(ControlLinks, NameTheMissingRanks) {
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    if (world.rank == 1) return;
    const transport::ControlLinks links(world.rank, world.size, store, "c",
                                        Deadline::in_seconds(0.5));
  });
  for (const int rank : {0, 2})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                HasSubstr("rank(s) 1 did not join the group in time"));
}

// Replaces the addresses in rank 0's card for the other ranks.
class ReaddressedStore final : public ForwardingStore {
 public:
  ReaddressedStore(Store& store, std::string addresses)
      : ForwardingStore(store), addresses_(std::move(addresses)) {}
  std::string get(std::string_view key, Deadline deadline) override {
    const std::string value = ForwardingStore::get(key, deadline);
    if (!key.ends_with("/hub")) return value;
    std::istringstream card(value);  // the card has five lines before the addresses
    std::string port, secret, skipped;
    for (int line = 0; line < 5; ++line) std::getline(card, skipped);
    card >> port >> secret;
    return fmt::format("elsewhere\nanother\n\n\n\n{}\n{}\n{}\n127.0.0.1\n::1", port, secret,
                       addresses_);
  }

 private:
  const std::string addresses_;
};

void expect_to_hear_of_an_abort(const std::string& addresses) {
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    ReaddressedStore readdressed(store, addresses);
    transport::ControlLinks links(world.rank, world.size, readdressed, "c",
                                  Deadline::in_seconds(20));
    if (world.rank == 0) links.tell(transport::ControlNews::Kind::aborted, "enough");
    const auto until = Deadline::in_seconds(20);
    while (world.rank == 1 && !links.news() && !until.passed()) sleep_seconds(0.002);
    if (world.rank == 1) {
      ASSERT_TRUE(links.news());
      EXPECT_EQ(links.news()->text, "enough");
    }
    links.leave();
  });
}

TEST(ControlLinks, ReachRankZeroByItsNextAddress) {
  expect_to_hear_of_an_abort("255.255.255.255\n127.0.0.1");
}

// Rank 0's card exists, so rank 0 is alive. Both sides fail soon, whatever the deadline.
TEST(ControlLinks, NameTheAddressesAtWhichRankZeroIsUnreachable) {
  const auto start = Clock::now();
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    ReaddressedStore readdressed(store, "255.255.255.255\n::ffff:255.255.255.255");
    Store& seen = world.rank == 1 ? static_cast<Store&>(readdressed) : store;
    const transport::ControlLinks links(world.rank, 3, seen, "c", Deadline::in_seconds(60), 0.2);
  });
  EXPECT_LT(seconds_since(start), 10);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0 on 'elsewhere' did not answer at "
                                           "255.255.255.255 ("),
                                 HasSubstr("::ffff:255.255.255.255 ("), HasSubstr(", port "))));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 did not join: "));
}

TEST(ControlLinks, ReachRankZeroOverIpv6) {
  int port = 0;
  const transport::FileDescriptor anywhere = transport::control::listen_anywhere(1, port);
  if (!transport::control::connect_to("::1", port, Deadline::in_seconds(5)))
    GTEST_SKIP() << "this machine has no IPv6";
  expect_to_hear_of_an_abort("::1");
}

// Another machine with one of rank 0's addresses accepts the connection, but does not answer as
// rank 0. The test itself acts as rank 0.
TEST(ControlLinks, AbandonAListenerThatIsNotRankZero) {
  for (const bool speaks : {false, true})
    shoal::test::run_thread_ranks(2, [speaks](const World& world, Store& store) {
      const auto deadline = Deadline::in_seconds(30);
      if (world.rank == 1) {
        const transport::ControlLinks links(1, 2, store, "c", deadline);
        store.set("joined", "1");
        return;
      }
      const auto listen_at = [](std::uint32_t address, int& port) {
        transport::FileDescriptor fd(socket(AF_INET, SOCK_STREAM, 0));
        sockaddr_in own{};
        own.sin_family = AF_INET;
        own.sin_addr.s_addr = htonl(address);
        own.sin_port = htons(static_cast<std::uint16_t>(port));
        socklen_t length = sizeof own;
        auto* const name = reinterpret_cast<sockaddr*>(&own);
        EXPECT_EQ(bind(fd.get(), name, length), 0) << port;
        EXPECT_EQ(listen(fd.get(), 8), 0);
        EXPECT_EQ(getsockname(fd.get(), name, &length), 0);
        port = ntohs(own.sin_port);
        return fd;
      };
      int port = 0;
      const transport::FileDescriptor stranger = listen_at(0x7f000002, port);
      const transport::FileDescriptor hub = listen_at(0x7f000003, port);
      // Answers the hello with the result of `words`.
      const auto answer = [](const transport::FileDescriptor& at, const auto& words) {
        transport::control::Connection connection;
        connection.fd =
            transport::FileDescriptor(accept4(at.get(), nullptr, nullptr, SOCK_NONBLOCK));
        transport::control::Message hello;
        EXPECT_TRUE(transport::control::await(connection, hello, Deadline::in_seconds(20)));
        connection.out = words(hello.text);
        connection.flush();
        return connection;
      };
      store.set(
          "c/hub",
          fmt::format("elsewhere\nanother\n\n\n\n{}\nsecret\n127.0.0.2\n127.0.0.3\n127.0.0.1\n::1",
                      port));
      store.set("c/came/0", "1");
      using transport::control::Kind;
      using transport::control::Message;
      // Rank 0 has the secret in its card and the job's token, which is empty here.
      const auto challenge = [](const std::string& secret, const std::string& hello) {
        handshake::Server server(JobToken().with(secret), "control");
        return Message{Kind::hello, 0, server.challenge(hello), 0}.bytes();
      };
      const auto turned_from = answer(stranger, [&](const std::string& hello) {
        return speaks ? challenge("another", hello) : std::string();
      });
      const auto met = answer(hub, [&](const std::string& hello) {
        return challenge("secret", hello) + Message{Kind::welcome, 0, "", 0}.bytes();
      });
      EXPECT_NO_THROW(store.get("joined", deadline));
    });
}

}  // namespace
}  // namespace shoal::collectives
