// Collectives and messages of device memory in stream order, without waits on the host. Later work
// on the stream must see their data, and no host thread may block.
#include <cstdlib>
#include <vector>

#include "gpu/on_gpu.h"
#include "support/calls.h"
#include "support/error_text.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/collectives/backend/device/device_communicator.h"
#include "shoal/runtime/device/stream_gate.h"

namespace shoal::collectives {
namespace {

using shoal::test::error_text;
using shoal::test::expect_on_gpu;
using ::testing::HasSubstr;

constexpr std::int64_t kCount = 3001;
constexpr auto kBytes = static_cast<std::size_t>(kCount);

// A rank's communicator, a stream, device buffers, and one buffer that the host reads.
struct Rank {
  Rank(const World& world, Store& its_store, double seconds = 30, bool symmetric = true)
      : store(its_store), stream_(shoal::test::device_of(world)), landed_(stream_.view().device) {
    setenv("SHOAL_STREAM_GATES", "1", 0);  // only in this rank's process
    CommunicatorOptions options = shoal::test::with_deadline(seconds);
    options.stream = stream_.view();
    communicator = make_communicator(world, store, options);
    if (!symmetric) device_memory_ = make_device_memory(stream_.view().device);
    MemoryResource& memory = symmetric ? communicator->memory_resource() : *device_memory_;
    for (Buffer* buffer : {&a_, &b_})
      *buffer = Buffer(memory, kBytes, MemoryTag::activations, stream_.view());
    host_ = static_cast<unsigned char*>(cuda_.allocate_pinned(kBytes));
    gates = why_no_stream_gates(stream_.view().device).empty();
  }
  ~Rank() {
    cuda_.synchronize(stream_.view());
    cuda_.deallocate_pinned(host_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void fill(const Buffer& buffer, int value) {
    cuda_.fill(buffer.data(), value, kBytes, stream_.view());
  }
  void copy(const Buffer& to, const Buffer& from) {
    cuda_.copy(to.data(), from.data(), kBytes, stream_.view());
  }
  WorkPtr sum(const Buffer& buffer) {
    return communicator->all_reduce(buffer.data(), buffer.data(), kCount, DType::u8, ReduceOp::sum);
  }
  WorkPtr send(const Buffer& from, int peer) {
    return communicator->send(from.data(), kCount, DType::u8, peer);
  }
  WorkPtr recv(const Buffer& into, int peer) {
    return communicator->recv(into.data(), kCount, DType::u8, peer);
  }
  void behind(const WorkPtr& work) { work->block_stream(stream_.view()); }
  void shut(StreamGate& gate) const { gate.block_stream(stream_.view()); }
  // Queues a copy behind all earlier work and waits for it.
  void land(const Buffer& buffer) {
    cuda_.copy(host_, buffer.data(), kBytes, stream_.view());
    landed_.record(stream_.view());
  }
  bool has_landed() const { return landed_.query(); }
  int landed() const {
    landed_.synchronize();
    EXPECT_EQ(host_[0], host_[kBytes - 1]);
    return host_[0];
  }
  int value(const Buffer& buffer) {
    land(buffer);
    return landed();
  }
  std::int64_t waits() const {
    return dynamic_cast<const device::DeviceCommunicator&>(*communicator).waits();
  }
  // The first operations of each kind are waited for.
  void warm_up(int rank) {
    fill(a_, 1);
    behind(sum(a_));
    behind(rank == 0 ? recv(b_, 1) : send(a_, 0));
    behind(rank == 0 ? send(a_, 1) : recv(b_, 0));
    communicator->barrier()->wait();
  }

  Store& store;
  std::unique_ptr<Communicator> communicator;
  bool gates = false;

 private:
  OwnedStream stream_;
  std::unique_ptr<MemoryResource> device_memory_;
  DeviceBackend& cuda_ = device_backend(DeviceType::cuda);
  Event landed_;
  unsigned char* host_ = nullptr;

 public:
  Buffer a_, b_;
};

Deadline soon() { return Deadline::in_seconds(20); }

// Rank 1 calls only after rank 0 has continued, so a rank 0 that waited would wait forever.
void check_that_nobody_waits(const World& world, Store& store, bool symmetric) {
  Rank r(world, store, 30, symmetric);
  if (!r.gates) return;
  r.warm_up(world.rank);
  const std::int64_t waits = r.waits();
  const auto first = [&](const std::string& what) {
    if (world.rank == 0)
      store.set(what, "went on");
    else
      (void)store.get(what, soon());
  };
  r.fill(r.a_, world.rank + 3);
  if (world.rank == 0) {
    r.behind(r.sum(r.a_));
    r.land(r.a_);
    for (int asked = 0; asked < 5; ++asked) EXPECT_FALSE(r.has_landed());
    first("all_reduce");
    EXPECT_EQ(r.landed(), 7);
    r.behind(r.recv(r.b_, 1));
    r.land(r.b_);
    for (int asked = 0; asked < 5; ++asked) EXPECT_FALSE(r.has_landed());
    first("recv");
    EXPECT_EQ(r.landed(), 21);
    // The stream overwrites the sent buffer once the other rank has its data.
    r.fill(r.a_, 31);
    r.behind(r.send(r.a_, 1));
    r.fill(r.a_, 32);
    r.land(r.a_);
    for (int asked = 0; asked < 5; ++asked) EXPECT_FALSE(r.has_landed());
    first("send");
    EXPECT_EQ(r.landed(), 32);
  } else {
    first("all_reduce");
    r.behind(r.sum(r.a_));
    EXPECT_EQ(r.value(r.a_), 7);
    first("recv");
    r.fill(r.a_, 21);
    r.behind(r.send(r.a_, 0));
    r.fill(r.a_, 22);
    first("send");
    r.behind(r.recv(r.b_, 0));
    EXPECT_EQ(r.value(r.b_), 31);
    EXPECT_EQ(r.value(r.a_), 22);
  }
  EXPECT_EQ(r.waits(), waits);
}

TEST(StreamOrder, NoThreadWaitsForAnOperation) {
  expect_on_gpu(
      2, 60, [](const World& world, Store& store) { check_that_nobody_waits(world, store, true); });
}

TEST(StreamOrder, NoThreadWaitsForAnOperationOnCopiedBuffers) {
  expect_on_gpu(2, 60, [](const World& world, Store& store) {
    check_that_nobody_waits(world, store, false);
  });
}

// Like a pipeline or a tensor-parallel layer: each step's operations depend on earlier ones only
// through the stream, and all are called before the first is done. Each rank's sends and sums
// follow its recvs on the stream. The communicator's internal streams must add no other dependency.
void check_a_chain(const World& world, Store& store) {
  Rank r(world, store);
  r.warm_up(world.rank);
  const std::int64_t waits = r.waits();
  constexpr int kTurns = 5;
  if (world.rank == 0) r.fill(r.a_, 1);
  for (int turn = 0; turn < kTurns; ++turn) {
    if (world.rank == 0) {
      r.behind(r.send(r.a_, 1));
      r.behind(r.recv(r.a_, 1));
    } else {
      r.behind(r.recv(r.b_, 0));
      r.copy(r.a_, r.b_);
      r.behind(r.send(r.a_, 0));
    }
    r.behind(r.sum(r.a_));  // doubles the value
  }
  EXPECT_EQ(r.waits() - waits, r.gates ? 0 : r.waits() - waits);
  EXPECT_EQ(r.value(r.a_), 1 << kTurns);
  r.communicator->barrier()->wait();
}

TEST(StreamOrder, OperationsDependOnEachOtherOnlyThroughTheStream) {
  expect_on_gpu(2, 60, check_a_chain);
}

TEST(StreamOrder, OperationsBetweenHostsDependOnlyOnTheStream) {
  SHOAL_NEEDS_A_NETWORK();
  expect_on_gpu(2, 60, [](const World& world, Store& store) {
    World apart = world;
    apart.host = "host " + std::to_string(world.rank);
    check_a_chain(apart, store);
  });
}

// The send depends on data that arrives later. It must delay neither the recv nor a sum.
TEST(StreamOrder, MessagesDoNotBlockEachOther) {
  expect_on_gpu(2, 60, [](const World& world, Store& store) {
    Rank r(world, store);
    r.warm_up(world.rank);
    const int peer = 1 - world.rank;
    for (int turn = 0; turn < 3; ++turn) {
      r.fill(r.a_, 10 * turn + world.rank);
      const WorkPtr out = r.send(r.a_, peer), in = r.recv(r.b_, peer);
      r.behind(in);
      r.behind(out);
      const WorkPtr back = r.send(r.b_, peer);
      r.behind(r.recv(r.a_, peer));
      r.behind(back);
      EXPECT_EQ(r.value(r.a_), 10 * turn + world.rank);
      EXPECT_EQ(r.value(r.b_), 10 * turn + peer);
    }
  });
}

TEST(StreamOrder, DestroyingACommunicatorOpensItsGates) {
  expect_on_gpu(2, 60, [](const World& world, Store& store) {
    Rank r(world, store);
    const auto part = r.communicator->split(0, world.rank);
    r.warm_up(world.rank);
    auto other = r.communicator->split(0, world.rank);
    for (int turn = 0; turn < 2; ++turn) {
      r.fill(r.a_, 5);
      const WorkPtr work =
          other->all_reduce(r.a_.data(), r.a_.data(), kCount, DType::u8, ReduceOp::sum);
      r.behind(work);
    }
    other.reset();
    EXPECT_EQ(r.value(r.a_), 10);
    part->barrier()->wait();
  });
}

TEST(StreamOrder, CountsHostWaitsIfStreamsMayNotWait) {
  expect_on_gpu(2, 60, [](const World& world, Store& store) {
    setenv("SHOAL_STREAM_GATES", "0", 1);
    Rank r(world, store);
    r.warm_up(world.rank);
    const std::int64_t waits = r.waits();
    const auto start = [&] {
      r.fill(r.a_, 1);
      return r.sum(r.a_);
    };
    if (world.rank == 0) {
      const WorkPtr work = start();
      store.set("called", "yes");
      r.behind(work);
      EXPECT_EQ(r.waits(), waits + 1);
      EXPECT_TRUE(work->test());
    } else {
      (void)store.get("called", soon());
      r.behind(start());
    }
    EXPECT_EQ(r.value(r.a_), 2);
  });
}

// Rank 0's stream waits when the other rank ends or does not call. The stream must continue, and
// rank 0's next call, in the same group or another one, must report the error.
TEST(StreamOrder, ALostRankOpensTheGateAndIsNamed) {
  const auto outcomes = shoal::test::on_gpu(2, 60, [](const World& world, Store& store) {
    Rank r(world, store, 20);
    const auto part = r.communicator->split(0, world.rank);
    r.warm_up(world.rank);
    const auto sum = [&] {
      return part->all_reduce(r.a_.data(), r.a_.data(), kCount, DType::u8, ReduceOp::sum);
    };
    r.behind(sum());
    if (world.rank == 1) {
      (void)store.get("waiting", soon());
      _exit(3);
    }
    r.behind(sum());
    r.land(r.a_);
    store.set("waiting", "yes");
    (void)r.landed();  // the stream must not hang
    EXPECT_THAT(error_text([&] { r.behind(sum()); }), HasSubstr("rank 1"));
    EXPECT_THAT(error_text([&] { r.communicator->host().barrier()->wait(); }), HasSubstr("rank 1"));
    EXPECT_THAT(error_text([&] { r.sum(r.a_)->wait(); }), HasSubstr("rank 1"));
  });
  if (outcomes.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(outcomes[0].exit_status, 0) << outcomes[0].error;
  EXPECT_EQ(outcomes[1].exit_status, 3);
}

// No thread waits for the Work, so only the communicator's own deadline can end it.
TEST(StreamOrder, ADeadlineOpensTheGate) {
  expect_on_gpu(2, 60, [](const World& world, Store& store) {
    Rank r(world, store, 2);
    r.warm_up(world.rank);
    if (world.rank == 1) {
      (void)store.get("told", soon());
      EXPECT_THAT(error_text([&] { r.communicator->host().barrier()->wait(); }),
                  HasSubstr("rank 0"));
      return;
    }
    r.behind(r.recv(r.b_, 1));
    r.land(r.b_);
    (void)r.landed();
    EXPECT_THAT(error_text([&] { (void)r.send(r.a_, 1); }), HasSubstr("rank 1"));
    EXPECT_THAT(error_text([&] { r.communicator->host().barrier()->wait(); }),
                HasSubstr("did not finish"));
    store.set("told", "yes");
  });
}

// Rank 0's stream never reaches the operation that rank 0 has called. Rank 0's own deadline reports
// it, and rank 1 learns of it long before its own deadline, although rank 0 exits at once.
void check_that_a_late_device_is_named(bool apart, bool message) {
  const auto outcomes = shoal::test::on_gpu(2, 60, [&](World world, Store& store) {
    if (apart) world.host = "host " + std::to_string(world.rank);
    Rank r(world, store, world.rank == 0 ? 2 : 50);
    if (!r.gates) return;
    r.warm_up(world.rank);
    const auto call = [&] {
      if (!message) return r.sum(r.a_);
      return world.rank == 0 ? r.send(r.a_, 1) : r.recv(r.b_, 0);
    };
    if (world.rank == 1) {
      const std::string text = error_text([&] { call()->wait(); });
      EXPECT_THAT(text, HasSubstr("rank 0 aborted: the work of cuda:0 that"));
      EXPECT_THAT(text, HasSubstr("did not finish in time"));
      return;
    }
    const auto gate = make_stream_gate(shoal::test::device_of(world));
    r.shut(*gate);
    EXPECT_THAT(error_text([&] { call()->wait(); }),
                HasSubstr(message ? "that messages wait for did not finish in time"
                                  : "that all_reduce of 3001 u8, sum waits for did not finish"));
    _exit(::testing::Test::HasFailure() ? 4 : 3);
  });
  if (outcomes.empty()) GTEST_SKIP() << "no GPU";
  if (outcomes[0].exit_status == 0) GTEST_SKIP() << "streams do not wait at gates";
  EXPECT_EQ(outcomes[0].exit_status, 3) << outcomes[0].error;
  EXPECT_EQ(outcomes[1].exit_status, 0) << outcomes[1].error;
}

TEST(StreamOrder, ALateDeviceEndsAllRanks) { check_that_a_late_device_is_named(false, false); }

TEST(StreamOrder, ALateDeviceEndsAllHosts) {
  SHOAL_NEEDS_A_NETWORK();
  check_that_a_late_device_is_named(true, false);
}

TEST(StreamOrder, ALateMessageEndsAllRanks) { check_that_a_late_device_is_named(false, true); }

TEST(StreamOrder, ALateMessageEndsAllHosts) {
  SHOAL_NEEDS_A_NETWORK();
  check_that_a_late_device_is_named(true, true);
}

TEST(StreamOrder, AnAbortOpensTheGate) {
  expect_on_gpu(2, 60, [](const World& world, Store& store) {
    Rank r(world, store);
    r.warm_up(world.rank);
    if (world.rank == 1) {
      (void)store.get("waiting", soon());
      r.communicator->abort("enough");
      return;
    }
    r.behind(r.sum(r.a_));
    r.land(r.a_);
    store.set("waiting", "yes");
    (void)r.landed();
    EXPECT_THAT(error_text([&] { (void)r.sum(r.a_); }), HasSubstr("rank 1 aborted: enough"));
  });
}

TEST(StreamOrder, MismatchedMessagesAreNamedOnBothSides) {
  const auto outcomes = shoal::test::on_gpu(2, 60, [](const World& world, Store& store) {
    Rank r(world, store);
    if (world.rank == 0)
      r.communicator->send(r.a_.data(), 5, DType::u8, 1)->wait();
    else
      r.communicator->recv(r.a_.data(), 4, DType::u8, 0)->wait();
  });
  if (outcomes.empty()) GTEST_SKIP() << "no GPU";
  for (const auto& outcome : outcomes)
    EXPECT_THAT(outcome.error, HasSubstr("rank 1 called recv of 4 u8 from rank 0, rank 0 called "
                                         "send of 5 u8 to rank 1"));
}

}  // namespace
}  // namespace shoal::collectives
