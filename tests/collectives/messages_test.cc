// send and recv of the native backend, and the shared-memory endpoint below it.
#include <array>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>

#include "at_best.h"
#include "shm_connection.h"
#include "support/calls.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/transport/shm_endpoint.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives {
namespace {

using shoal::test::ProcessRanks;
using shoal::test::sleep_seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

CommunicatorOptions options(double deadline = 30) {
  CommunicatorOptions o;
  o.deadline_seconds = deadline;
  return o;
}

TEST(Messages, TheKthSendMatchesTheKthRecvWhateverElseRuns) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options());
    // Lengths below and above the eager limit, including empty messages.
    const std::vector<std::int64_t> counts{1, 0, 5000, 3, 100000, 2};
    std::vector<std::vector<std::int32_t>> data;
    std::vector<WorkPtr> works;
    for (const std::int64_t count : counts) {
      data.emplace_back(static_cast<std::size_t>(count) + 1,
                        world.rank == 0 ? static_cast<std::int32_t>(count) : -1);
      works.push_back(world.rank == 0 ? c->send(data.back().data(), count, DType::i32, 1)
                                      : c->recv(data.back().data(), count, DType::i32, 0));
      std::int64_t one = 1;
      c->all_reduce(&one, &one, 1, DType::i64, ReduceOp::sum)->wait();
      EXPECT_EQ(one, 2);
    }
    // The works are waited for in another order.
    for (std::size_t i = works.size(); i-- > 0;) works[i]->wait();
    for (std::size_t i = 0; i < counts.size(); ++i)
      for (std::int64_t k = 0; k < counts[i]; ++k)
        ASSERT_EQ(data[i][static_cast<std::size_t>(k)], counts[i]);
    for (std::size_t i = 0; i < counts.size() && world.rank == 1; ++i)
      EXPECT_EQ(data[i].back(), -1);  // the element after the message is unchanged
  });
}

TEST(Messages, TravelFromAndToSymmetricMemory) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options());
    constexpr std::int64_t kCount = 1 << 20;
    for (const bool from_symmetric : {false, true})
      for (const bool to_symmetric : {false, true}) {
        const bool here = world.rank == 0 ? from_symmetric : to_symmetric;
        std::vector<float> plain(kCount, 0.0f);
        Buffer buffer(c->memory_resource(), kCount * 4, MemoryTag::workspace);
        auto* values = here ? static_cast<float*>(buffer.data()) : plain.data();
        std::fill_n(values, kCount, world.rank == 0 ? 7.0f : 0.0f);
        (world.rank == 0 ? c->send(values, kCount, DType::f32, 1)
                         : c->recv(values, kCount, DType::f32, 0))
            ->wait();
        EXPECT_EQ(values[0], 7.0f);
        EXPECT_EQ(values[kCount - 1], 7.0f);
      }
  });
}

// More messages than the ring holds. No rank waits before all are posted.
TEST(Messages, ManyMayBeInFlight) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options());
    constexpr int kMany = 300;
    const int to = (world.rank + 1) % 3, from = (world.rank + 2) % 3;
    std::vector<std::int64_t> sent(kMany), got(kMany, -1);
    std::vector<WorkPtr> works;
    for (int i = 0; i < kMany; ++i) {
      sent[static_cast<std::size_t>(i)] = 1000 * world.rank + i;
      works.push_back(c->send(&sent[static_cast<std::size_t>(i)], 1, DType::i64, to));
    }
    c->barrier()->wait();
    for (int i = 0; i < kMany; ++i)
      works.push_back(c->recv(&got[static_cast<std::size_t>(i)], 1, DType::i64, from));
    for (const auto& work : works) work->wait();
    for (int i = 0; i < kMany; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], 1000 * from + i);
  });
}

TEST(Messages, LargeOnesTravelInBothDirections) {
  shoal::test::run_thread_ranks(4, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options());
    constexpr std::int64_t kCount = 300007;
    std::vector<std::vector<std::int32_t>> in(4), out(4);
    c->begin_group();
    for (int peer = 0; peer < 4; ++peer) {
      if (peer == world.rank) continue;
      auto& o = out[static_cast<std::size_t>(peer)];
      auto& i = in[static_cast<std::size_t>(peer)];
      o.assign(kCount, 10 * world.rank + peer);
      i.assign(kCount, -1);
      c->send(o.data(), kCount, DType::i32, peer);
      c->recv(i.data(), kCount, DType::i32, peer);
    }
    c->end_group()->wait();
    for (int peer = 0; peer < 4; ++peer)
      for (const std::int32_t value : in[static_cast<std::size_t>(peer)])  // none to itself
        ASSERT_EQ(value, 10 * peer + world.rank);
  });
}

TEST(Messages, AreFinishedByTheProgressThread) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options());
    std::vector<float> x(200000, static_cast<float>(world.rank));
    // A sender's call may finish a message at once if the receiver has already called, so the
    // receiver calls first.
    WorkPtr work;
    if (world.rank == 1) {
      work = c->recv(x.data(), 200000, DType::f32, 0);
      store.set("receives", "");
    } else {
      store.get("receives", Deadline::in_seconds(10));
      work = c->send(x.data(), 200000, DType::f32, 1);
    }
    const auto start = Clock::now();
    while (c->statistics().operations == 0 && seconds_since(start) < 10) sleep_seconds(0.001);
    EXPECT_EQ(c->statistics().operations, 1);
    if (world.rank == 1) {
      EXPECT_EQ(c->statistics().by_progress_thread, 1);
    }
    work->wait();
    EXPECT_EQ(x.back(), 0.0f);
  });
}

TEST(Messages, NameAMismatch) {
  const auto errors = shoal::test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options(2));
    std::vector<float> x(10);
    if (world.rank == 0) c->send(x.data(), 5, DType::f32, 1)->wait();
    if (world.rank == 1) c->recv(x.data(), 4, DType::f32, 0)->wait();
  });
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 1 called recv of 4 f32 from rank 0, rank 0 called "
                                         "send of 5 f32 to rank 1"),
                               HasSubstr("message 1 from rank 0")));
}

TEST(Messages, NameTheMissingRankWhenTheDeadlinePasses) {
  const auto errors = shoal::test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options(0.3));
    std::vector<float> x(100000);
    c->barrier()->wait();
    if (world.rank == 0) c->recv(x.data(), 7, DType::f32, 1)->wait();
    sleep_seconds(1);
  });
  EXPECT_THAT(
      errors[0],
      AllOf(HasSubstr("recv of 7 f32 from rank 1 (message 1 from rank 1) did not finish within"),
            HasSubstr("rank 1 has not sent it (it last called barrier (#1))")));
}

TEST(Messages, OfASplitGroupNameRanksByTheirNumbersInTheJob) {
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    const auto part =
        make_communicator(world, store, options(2))->split(world.rank == 0 ? -1 : 0, 0);
    std::vector<float> values(4);
    try {
      if (world.rank == 2) part->recv(values.data(), 4, DType::f32, 0)->wait();
    } catch (const Error&) {
      store.set("given up", "");
      throw;
    }
    store.get("given up", Deadline::in_seconds(20));
  });
  EXPECT_THAT(errors[2], AllOf(HasSubstr("recv of 4 f32 from rank 1 (message 1 from rank 1) did "
                                         "not finish within "),
                               HasSubstr("rank 1 has not sent it"), HasSubstr("[rank 2, peer 1")));
}

TEST(Messages, AnAbortEndsTheWait) {
  const auto errors = shoal::test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options(20));
    float x = 0;
    if (world.rank == 0) c->recv(&x, 1, DType::f32, 1)->wait();
    sleep_seconds(0.1);
    c->abort("no more");
    sleep_seconds(0.5);
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 aborted: no more"));
}

double seconds_to_name_a_killed_peer(std::int64_t count) {
  ProcessRanks ranks(2, [count](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options(60));
    std::vector<float> x(1000000);
    ProcessRanks::say_ready(store);
    for (;;) {
      if (world.rank == 0) c->recv(x.data(), count, DType::f32, 1)->wait();
      if (world.rank == 1) c->send(x.data(), count, DType::f32, 0)->wait();
    }
  });
  EXPECT_TRUE(ranks.wait_until_ready(20, 2));
  sleep_seconds(0.05);
  const auto killed = Clock::now();
  ranks.send_signal(1, SIGKILL);
  const auto outcomes = ranks.wait(10);
  const double seconds = seconds_since(killed);
  EXPECT_THAT(outcomes[0].error,
              AllOf(HasSubstr("rank 1 died"), HasSubstr(fmt::format("recv of {} f32", count))));
  return seconds;
}

TEST(Messages, NameAKilledPeerWithinASecond) {
  for (const std::int64_t count : {1, 1000000})
    EXPECT_LT(shoal::test::at_best(1, [count] { return seconds_to_name_a_killed_peer(count); }), 1);
}

// A message sent before its sender left still arrives.
TEST(Messages, OutliveTheirSendersCommunicator) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    auto c = make_communicator(world, store, options());
    std::int64_t x = world.rank == 0 ? 42 : 0;
    if (world.rank == 0) {
      c->send(&x, 1, DType::i64, 1)->wait();
      c.reset();
    }
    barrier(store, "left", 2, Deadline::in_seconds(20));
    if (world.rank == 1) c->recv(&x, 1, DType::i64, 0)->wait();
    EXPECT_EQ(x, 42);
  });
}

// Tests of the endpoint without a communicator.

constexpr transport::OperationKey kKey{7, 1};
const Signature kSignature{Operation::all_reduce, DType::u8, ReduceOp::sum, 0, -1, 10, 0};

std::unique_ptr<transport::Endpoint> connected(const World& world, Store& store) {
  return transport::connect_shm_endpoint(world.rank, world.size, store, "endpoint",
                                         Deadline::in_seconds(20));
}

void drive(transport::Endpoint& endpoint, const transport::Completion& completion) {
  const auto start = Clock::now();
  while (!completion.done()) {
    if (!endpoint.progress()) endpoint.sleep(100);
    if (seconds_since(start) > 20) throw Error(ErrorCode::timeout, "the test hangs");
  }
}

TEST(ShmEndpoint, MatchesMessagesByTagInAnyOrder) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto endpoint = connected(world, store);
    constexpr int kMessages = 40;
    std::vector<std::vector<std::uint8_t>> in, out;
    transport::Completion completion;
    for (int i = 0; i < kMessages; ++i) {
      const auto bytes = static_cast<std::size_t>(i % 4 == 3 ? 50000 + i : i);
      out.emplace_back(bytes, static_cast<std::uint8_t>(world.rank * 64 + i));
      in.emplace_back(bytes, std::uint8_t{255});
    }
    if (world.rank == 2) sleep_seconds(0.02);  // messages arrive before their operation has begun
    endpoint->begin(kKey, kSignature);
    const int to = (world.rank + 1) % 3, from = (world.rank + 2) % 3;
    for (std::uint32_t i = 0; i < kMessages; ++i)
      endpoint->post_send(to, {kKey, i}, out[i].data(), static_cast<std::int64_t>(out[i].size()),
                          completion);
    for (std::uint32_t i = kMessages; i-- > 0;)
      endpoint->post_receive(from, {kKey, i}, in[i].data(), static_cast<std::int64_t>(in[i].size()),
                             completion);
    drive(*endpoint, completion);
    endpoint->end(kKey);
    for (int i = 0; i < kMessages; ++i)
      for (const std::uint8_t byte : in[static_cast<std::size_t>(i)])
        ASSERT_EQ(byte, static_cast<std::uint8_t>(from * 64 + i));
    const transport::EndpointStatistics s = endpoint->statistics();
    EXPECT_EQ(s.eager_messages, 30);
    EXPECT_EQ(s.rendezvous_messages, 10);
    EXPECT_EQ(s.bytes_sent, s.bytes_received);
    EXPECT_EQ(s.staged_bytes, 10 * 50000 + 3 * 10 + 4 * 45);
    barrier(store, "done", 3, Deadline::in_seconds(20));
  });
}

TEST(ShmEndpoint, NamesMismatchedOperationsAndLengths) {
  for (const bool other_length : {false, true}) {
    const auto errors = shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
      const auto endpoint = connected(world, store);
      Signature signature = kSignature;
      if (world.rank == 1 && !other_length) signature.count = 11;
      endpoint->begin(kKey, signature);
      std::uint8_t bytes[2] = {};
      transport::Completion completion;
      if (world.rank == 1)
        endpoint->post_send(0, {kKey, 0}, bytes, 1, completion);
      else
        endpoint->post_receive(1, {kKey, 0}, bytes, other_length ? 2 : 1, completion);
      drive(*endpoint, completion);
      barrier(store, "done", 2, Deadline::in_seconds(1));
    });
    EXPECT_THAT(
        errors[0],
        other_length
            ? HasSubstr("rank 1 sent a message of 1 bytes, rank 0 expects 2")
            : HasSubstr("rank 0 called all_reduce of 10 u8, sum, rank 1 called all_reduce of "
                        "11 u8, sum"));
  }
}

TEST(ShmEndpoint, NamesAPeerThatLeaves) {
  const auto errors = shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
    const auto endpoint = connected(world, store);
    if (world.rank == 1) return;
    endpoint->begin(kKey, kSignature);
    std::uint8_t byte = 0;
    transport::Completion completion;
    endpoint->post_receive(1, {kKey, 0}, &byte, 1, completion);
    drive(*endpoint, completion);
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 left the group"));
}

// Two ranks share one memory. The second one sends a message and leaves just when the first one
// checks whether it is alive.
class FarewellHost final : public transport::ShmHost {
 public:
  FarewellHost(int rank, std::array<transport::RankPage, 2>& pages,
               std::array<std::byte*, 2> mailboxes)
      : rank_(rank), pages_(pages), mailboxes_(mailboxes) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  transport::RankPage& page(int peer) const override {
    return pages_[static_cast<std::size_t>(peer)];
  }
  std::byte* mailboxes(int peer) const override {
    return mailboxes_[static_cast<std::size_t>(peer)];
  }
  transport::Location locate(const void*, std::int64_t) const override { return {}; }
  std::byte* resolve(int, const transport::Location&) const override { return nullptr; }
  std::string fate(int) const override {
    if (on_look) on_look();
    return on_look ? "left the group" : "";
  }
  std::function<void()> on_look;

 private:
  int rank_;
  std::array<transport::RankPage, 2>& pages_;
  std::array<std::byte*, 2> mailboxes_;
};

TEST(ShmEndpoint, DeliversMessagesSentBeforeAPeerLeft) {
  const auto pages = std::make_unique<std::array<transport::RankPage, 2>>();
  const std::size_t bytes = transport::shm_mailbox_bytes(2);
  const auto memory = make_host_memory();
  std::array<Buffer, 2> buffers;
  std::array<std::byte*, 2> mailboxes{};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    buffers[rank] = Buffer(*memory, bytes + 4096, MemoryTag::communication);
    void* begin = buffers[rank].data();
    std::size_t room = buffers[rank].size();
    mailboxes[rank] = static_cast<std::byte*>(std::align(4096, bytes, begin, room));
    std::memset(mailboxes[rank], 0, bytes);
  }
  auto host = std::make_unique<FarewellHost>(0, *pages, mailboxes);
  auto& on_look = host->on_look;
  const auto receiver = transport::make_shm_endpoint(std::move(host));
  const auto sender =
      transport::make_shm_endpoint(std::make_unique<FarewellHost>(1, *pages, mailboxes));
  std::uint8_t sent = 42, received = 0;
  transport::Completion sends, receives;
  sender->begin(kKey, kSignature);
  receiver->begin(kKey, kSignature);
  receiver->post_receive(1, {kKey, 0}, &received, 1, receives);
  on_look = [&] { sender->post_send(0, {kKey, 0}, &sent, 1, sends); };
  EXPECT_FALSE(receiver->progress());  // it finds no message, and then checks the peer
  on_look = nullptr;
  EXPECT_TRUE(receiver->progress());
  EXPECT_TRUE(receives.done());
  EXPECT_EQ(received, 42);
}

}  // namespace
}  // namespace shoal::collectives
