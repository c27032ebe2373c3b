// Communicators of device memory, with host memory in place of the device: the routes of calls and
// the handling of failures. On a GPU: tests/gpu.
#include <cstring>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "predictable.h"
#include "support/calls.h"
#include "support/error_text.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/device/device_communicator.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::error_text;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Numbers = std::vector<std::int64_t>;

// Ranks take turns on `hosts` hosts. Ranks on different hosts share no memory.
std::unique_ptr<Communicator> device(const World& world, Store& store, int hosts = 1,
                                     double deadline = 30, std::int64_t copy_bytes = 1 << 20,
                                     bool fixed_order = false) {
  CommunicatorOptions options = shoal::test::with_deadline(deadline);
  options.fixed_order = fixed_order;
  return std::make_unique<device::DeviceCommunicator>(
      make_communicator(world, store, options),
      device::DeviceCommunicator::Options{.stream = {},
                                          .host = "host " + std::to_string(world.rank % hosts),
                                          .fixed_order = fixed_order,
                                          .deadline_seconds = deadline,
                                          .slice_bytes = 4096,
                                          .copy_bytes = copy_bytes});
}

struct Group {
  int ranks, hosts;
  std::int64_t copy_bytes = 1 << 20;  // 0: memory that is not symmetric is staged in host memory
};
void PrintTo(const Group& group, std::ostream* out) {
  *out << group.ranks << " ranks on " << group.hosts << " hosts, " << group.copy_bytes
       << " bytes copied";
}
class Everything : public ::testing::TestWithParam<Group> {};

// Slices of 4 KiB: 1031 elements take one or several slices, and the last one is short.
TEST_P(Everything, GivesExactResults) {
  shoal::test::run_thread_ranks(GetParam().ranks, [](const World& world, Store& store) {
    const auto communicator = device(world, store, GetParam().hosts, 30, GetParam().copy_bytes);
    EXPECT_THAT(test::check_everything(*communicator, {0, 1, 7, 1031}), IsEmpty());
    const auto statistics = communicator->statistics();
    EXPECT_GT(statistics.bounced, 0);
    EXPECT_EQ(statistics.zero_copy > 0, GetParam().hosts == 1 || world.size == 1);
    EXPECT_THAT(statistics.transport,
                world.size > 1 && GetParam().hosts == 1 ? "memory of one process" : "shm");
  });
}
INSTANTIATE_TEST_SUITE_P(Groups, Everything,
                         ::testing::Values(Group{2, 1}, Group{3, 1}, Group{4, 1}, Group{2, 2},
                                           Group{3, 2}, Group{2, 1, 0}, Group{3, 1, 2000}));

TEST(DeviceCommunicator, OneRankCopiesOnItsStream) {
  shoal::test::run_thread_ranks(1, [](const World& world, Store& store) {
    const auto c = device(world, store);
    EXPECT_THAT(test::check_everything(*c, {0, 1, 1031}), IsEmpty());
    EXPECT_EQ(c->statistics().bounced, 0);
    c->abort("enough");
    EXPECT_THAT(error_text([&] { c->barrier()->wait(); }), HasSubstr("rank 0 aborted: enough"));
  });
}

TEST(DeviceCommunicator, SymmetricMemoryIsReadInPlaceAndPlainMemoryIsCopiedOrStaged) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto c = device(world, store, 1, 30, 8192);
    constexpr std::int64_t kCount = 10007;
    Buffer symmetric(c->memory_resource(), kCount * 4, MemoryTag::gradients);
    auto* values = static_cast<float*>(symmetric.data());
    std::fill_n(values, kCount, static_cast<float>(world.rank + 1));
    shoal::test::sum(*c, values, kCount);
    EXPECT_EQ(values[kCount - 1], 6.0f);
    EXPECT_EQ(c->statistics().zero_copy, 1);
    EXPECT_EQ(c->statistics().bounced, 0);
    // This rank copies its own buffer; the others are not affected.
    std::vector<float> small(1000, 1.0f);
    std::fill_n(values, 1000, 1.0f);
    shoal::test::sum(*c, world.rank == 1 ? small.data() : values, 1000);
    EXPECT_EQ(world.rank == 1 ? small.back() : values[999], 3.0f);
    EXPECT_EQ(c->statistics().zero_copy, world.rank == 1 ? 1 : 2);
    EXPECT_EQ(c->statistics().bounced, world.rank == 1 ? 1 : 0);
    EXPECT_EQ(c->statistics().bounced_bytes, world.rank == 1 ? 4000 : 0);
    // One buffer that is too large makes all ranks stage theirs.
    std::vector<float> plain(kCount, 1.0f);
    std::fill_n(values, kCount, 1.0f);
    shoal::test::sum(*c, world.rank == 1 ? plain.data() : values, kCount);
    EXPECT_EQ(world.rank == 1 ? plain.back() : values[kCount - 1], 3.0f);
    EXPECT_EQ(c->statistics().zero_copy, world.rank == 1 ? 1 : 2);
    EXPECT_EQ(c->statistics().bounced, world.rank == 1 ? 2 : 1);
    EXPECT_EQ(c->statistics().bounced_bytes, kCount * 4 + (world.rank == 1 ? 4000 : 0));
  });
}

// The layers of a split sequence call them like this. They become one operation on the network.
TEST(DeviceCommunicator, CollectivesOfAGroupAreOneOperation) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto c = device(world, store);
    constexpr std::int64_t kCount = 50, kCalls = 7;
    const Buffer memory(c->memory_resource(), 3 * kCalls * kCount * 4, MemoryTag::activations);
    auto* whole = static_cast<float*>(memory.data());
    std::vector<float> own(kCalls * kCount), sums(kCalls * kCount);
    std::iota(own.begin(), own.end(), 1000.0f * static_cast<float>(world.rank));
    for (int turn = 0; turn < 2; ++turn) {
      c->begin_group();
      for (std::int64_t i = 0; i < kCalls; ++i)
        c->all_gather(own.data() + i * kCount, whole + 3 * i * kCount, kCount, DType::f32);
      c->end_group()->wait();
      c->begin_group();
      for (std::int64_t i = 0; i < kCalls; ++i)
        c->reduce_scatter(whole + 3 * i * kCount, sums.data() + i * kCount, kCount, DType::f32,
                          ReduceOp::sum);
      c->end_group()->wait();
      for (std::size_t i = 0; i < own.size(); ++i) ASSERT_EQ(sums[i], 3 * own[i]) << i;
    }
    EXPECT_EQ(c->statistics().operations, 4 * kCalls);
    EXPECT_EQ(c->statistics().bounced, 2 * kCalls);
    EXPECT_EQ(c->statistics().zero_copy, 2 * kCalls);
  });
}

TEST(DeviceCommunicator, GroupsThatDifferAreAMismatch) {
  const auto errors = shoal::test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto c = device(world, store);
    std::vector<float> a(8), b(32);
    c->begin_group();
    c->all_gather(a.data(), b.data(), 4, DType::f32);
    c->all_gather(a.data() + 4, b.data() + 8, world.rank == 0 ? 4 : 3, DType::f32);
    c->end_group()->wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("all_gather of 4 f32")));
}

TEST(DeviceCommunicator, FixedOrderHasTheBitsOfTheHostsResult) {
  constexpr std::int64_t kCount = 3001;
  shoal::test::run_thread_ranks(5, [](const World& world, Store& store) {
    const auto c = device(world, store, 1, 30, 1 << 20, true);
    const Buffer symmetric(c->memory_resource(), kCount * 4, MemoryTag::gradients);
    auto* values = static_cast<float*>(symmetric.data());
    std::vector<float> host(kCount);
    for (std::int64_t i = 0; i < kCount; ++i)
      values[i] = host[static_cast<std::size_t>(i)] =
          1.0f / static_cast<float>(1 + (i * 7 + world.rank * 13) % 101);
    shoal::test::sum(*c, values, kCount);
    shoal::test::sum(c->host(), host);
    EXPECT_EQ(std::memcmp(values, host.data(), kCount * 4), 0);
  });
}

// Each rank posts in its own order. A collective between two messages delays neither of them.
TEST(DeviceCommunicator, MessagesPassCollectives) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = device(world, store);
    std::vector<float> sent(50000, static_cast<float>(world.rank)), received(50000),
        sum(9000, 1.0f);
    const int peer = 1 - world.rank;
    const WorkPtr in = c->recv(received.data(), 50000, DType::f32, peer);
    if (world.rank == 0) {
      const WorkPtr all = c->all_reduce(sum.data(), sum.data(), 9000, DType::f32, ReduceOp::sum);
      c->send(sent.data(), 50000, DType::f32, peer)->wait();
      in->wait();
      all->wait();
    } else {
      c->send(sent.data(), 50000, DType::f32, peer)->wait();
      in->wait();  // before it calls the collective that rank 0 is in
      c->all_reduce(sum.data(), sum.data(), 9000, DType::f32, ReduceOp::sum)->wait();
    }
    EXPECT_EQ(received.back(), static_cast<float>(peer));
    EXPECT_EQ(sum.back(), 2.0f);
  });
}

TEST(DeviceCommunicator, AGroupHasOneWork) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto c = device(world, store);
    std::vector<float> a(3000, 1.0f), b(7, 2.0f), in(20000), out(20000, 5.0f);
    c->begin_group();
    EXPECT_EQ(c->send(out.data(), 20000, DType::f32, (world.rank + 1) % 3), nullptr);
    EXPECT_EQ(c->all_reduce(a.data(), a.data(), 3000, DType::f32, ReduceOp::sum), nullptr);
    EXPECT_EQ(c->recv(in.data(), 20000, DType::f32, (world.rank + 2) % 3), nullptr);
    EXPECT_EQ(c->all_reduce(b.data(), b.data(), 7, DType::f32, ReduceOp::max), nullptr);
    EXPECT_EQ(c->statistics().operations, 0);
    const WorkPtr work = c->end_group();
    work->wait();
    EXPECT_TRUE(work->test());
    EXPECT_EQ(a.back(), 3.0f);
    EXPECT_EQ(b.back(), 2.0f);
    EXPECT_EQ(in.back(), 5.0f);
    EXPECT_EQ(c->statistics().operations, 4);
  });
}

TEST(DeviceCommunicator, SplitsIntoGroupsThatOutliveIt) {
  shoal::test::run_thread_ranks(4, [](const World& world, Store& store) {
    auto c = device(world, store);
    const auto part = c->split(world.rank == 3 ? -1 : 0, -world.rank);
    c.reset();
    if (world.rank == 3) {
      EXPECT_EQ(part, nullptr);
      return;
    }
    EXPECT_EQ(part->rank(), 2 - world.rank);
    EXPECT_THAT(test::check_everything(*part, {5}), IsEmpty());
  });
}

TEST(DeviceCommunicator, MismatchedCallsAreNamedAsTheUserMadeThem) {
  for (const int hosts : {1, 2}) {
    const auto errors = shoal::test::thread_rank_errors(2, [&](const World& world, Store& store) {
      const auto c = device(world, store, hosts);
      std::vector<float> x(64);
      if (world.rank == 0)
        c->all_reduce(x.data(), x.data(), 16, DType::f32, ReduceOp::sum)->wait();
      else
        c->broadcast(x.data(), 16, DType::f32, 0)->wait();
    });
    EXPECT_THAT(errors,
                Each(AllOf(HasSubstr("all_reduce of 16 f32, sum"), HasSubstr("broadcast"))));
  }
}

TEST(DeviceCommunicator, AMissingRankIsNamedAndLaterCallsThrow) {
  const auto errors = shoal::test::thread_rank_errors(2, [](const World& world, Store& store) {
    const auto c = device(world, store, 1, 20);
    std::vector<float> x(16);
    if (world.rank == 1) {
      shoal::test::sleep_seconds(1);
      return;
    }
    const WorkPtr work = c->all_reduce(x.data(), x.data(), 16, DType::f32, ReduceOp::sum);
    EXPECT_THAT(error_text([&] { work->wait(Deadline::in_seconds(0.3)); }),
                AllOf(HasSubstr("all_reduce of 16 f32, sum"), HasSubstr("rank 1")));
    c->barrier()->wait();
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1"));
}

TEST(DeviceCommunicator, AnAbortEndsOperationsInFlight) {
  const auto errors = shoal::test::thread_rank_errors(3, [](const World& world, Store& store) {
    const auto c = device(world, store);
    std::vector<float> x(5000);
    if (world.rank == 2) {
      shoal::test::sleep_seconds(0.1);
      c->abort("enough");
      c->barrier()->wait();
    }
    c->all_reduce(x.data(), x.data(), 5000, DType::f32, ReduceOp::sum)->wait();
  });
  EXPECT_THAT(errors, Each(HasSubstr("rank 2 aborted: enough")));
}

TEST(DeviceCommunicator, HostValuesUseASeparateGroup) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = device(world, store);
    std::vector<float> large(100000, 1.0f);
    const WorkPtr work =
        c->all_reduce(large.data(), large.data(), 100000, DType::f32, ReduceOp::sum);
    double loss = world.rank;
    c->host().all_reduce(&loss, &loss, 1, DType::f64, ReduceOp::sum)->wait();
    EXPECT_EQ(loss, 1.0);
    work->block_stream({});
    EXPECT_EQ(large.back(), 2.0f);
  });
}

// watch() gives the Work of the last call, so a host thread that is about to wait for its stream
// need not keep the Works of its calls.
TEST(DeviceCommunicator, WatchCoversItsLastCall) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = device(world, store);
    EXPECT_EQ(c->watch({}), nullptr);
    std::vector<float> x(5000, 1.0f);
    (void)c->all_reduce(x.data(), x.data(), 5000, DType::f32, ReduceOp::sum);
    c->watch({})->wait();
    EXPECT_EQ(x.back(), 2.0f);
  });
}

TEST(DeviceSymmetricMemory, MergesFreedBlocksAndFindsTheirSegments) {
  device::ShareableMemory memory(device::make_host_peer_access(), Stream{}, nullptr);
  const std::size_t mib = std::size_t{1} << 20;
  void* a = memory.allocate(mib, MemoryTag::gradients, {});
  void* b = memory.allocate(mib, MemoryTag::gradients, {});
  void* large = memory.allocate(20 * mib, MemoryTag::gradients, {});
  EXPECT_EQ(memory.segment_of(b, mib), a);
  EXPECT_EQ(memory.segment_of(static_cast<std::byte*>(large) + 7, 20 * mib - 7), large);
  EXPECT_EQ(memory.segment_of(large, 21 * mib), nullptr);
  int elsewhere = 0;
  EXPECT_EQ(memory.segment_of(&elsewhere, 4), nullptr);
  memory.deallocate(a, mib, MemoryTag::gradients, {});
  memory.deallocate(b, mib, MemoryTag::gradients, {});
  EXPECT_EQ(memory.allocate(device::ShareableMemory::kSegmentBytes, MemoryTag::gradients, {}), a);
  EXPECT_THROW(memory.allocate(0, MemoryTag::gradients, {}), Error);
}

#ifdef __SANITIZE_ADDRESS__
TEST(ShareableMemoryDeath, SanitizersDistinguishItsBlocks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  device::ShareableMemory memory(device::make_host_peer_access(), Stream{}, nullptr);
  const auto give = [&] { return memory.allocate(1000, MemoryTag::gradients, {}); };
  auto* const a = static_cast<volatile char*>(give());
  void* const b = give();
  a[999] = 1;
  EXPECT_DEATH(a[1000] = 1, "use-after-poison(.|\n)*WRITE of size 1");
  memory.deallocate(const_cast<char*>(a), 1000, MemoryTag::gradients, {});
  EXPECT_DEATH(a[0] = 1, "use-after-poison(.|\n)*WRITE of size 1");
  EXPECT_EQ(give(), a);
  a[999] = 1;
  memory.deallocate(b, 1000, MemoryTag::gradients, {});
}
#endif

// Provides this many segments, then fails.
class FewSegments final : public device::PeerAccess {
 public:
  explicit FewSegments(int segments) : left_(segments) {}
  std::string name() const override { return "few"; }
  void* allocate(std::size_t bytes) override {
    if (left_-- <= 0) throw_error(ErrorCode::out_of_memory, "no more");
    return access_->allocate(bytes);
  }
  void deallocate(void* base) noexcept override { access_->deallocate(base); }
  Handle export_memory(void* base) override { return access_->export_memory(base); }
  void* open(const Handle& handle) override { return access_->open(handle); }
  void close(void* opened) noexcept override { access_->close(opened); }
  void reach(Device peer) override { access_->reach(peer); }
  void wait_for_device() override { ++waits; }

  int waits = 0;

 private:
  std::unique_ptr<device::PeerAccess> access_ = device::make_host_peer_access();
  int left_;
};

TEST(DeviceSymmetricMemory, StaysWithTheStreamThatFreedItWhileOthersAreFree) {
  int here = 0, there = 0;
  const Stream first{Device::cpu(), &here}, second{Device::cpu(), &there};
  const auto access = std::make_shared<FewSegments>(2);
  device::ShareableMemory memory(access, first, nullptr);
  constexpr std::size_t kHalf = device::ShareableMemory::kSegmentBytes / 2 + 256;
  const auto give = [&](Stream stream) {
    return memory.allocate(kHalf, MemoryTag::activations, stream);
  };
  void* const a = give(first);
  memory.deallocate(a, kHalf, MemoryTag::activations, first);
  EXPECT_EQ(give({}), a) << "a call without a stream uses the first one";
  memory.deallocate(a, kHalf, MemoryTag::activations, {});
  void* const b = give(second);
  EXPECT_NE(b, a) << "the first stream's work may still use that block";
  EXPECT_EQ(access->waits, 0);
  EXPECT_EQ(give(second), a) << "it must reuse a block, because the device has no third segment";
  EXPECT_EQ(access->waits, 1) << "reuse by another stream waits for the first stream's work";
  EXPECT_THROW(give(second), Error);
  EXPECT_EQ(access->waits, 1) << "the same stream need not wait";
}

// A driver whose calls wait until another thread has used the memory.
class SlowDriver final : public device::PeerAccess {
 public:
  std::string name() const override { return "slow"; }
  void* allocate(std::size_t bytes) override {
    during("allocate");
    if (refuses) throw_error(ErrorCode::out_of_memory, "no more");
    return access_->allocate(bytes);
  }
  void deallocate(void* base) noexcept override { access_->deallocate(base); }
  Handle export_memory(void*) override {
    during("export");
    return {};
  }
  void wait_for_device() override { during("wait"); }

  std::function<void()> other;  // work of another thread during the call
  std::string which;
  bool refuses = false;
  std::vector<std::string> stood_still;  // driver calls that blocked the other thread

 private:
  void during(const std::string& call) {
    if (call != which) return;
    auto done = std::async(std::launch::async, other);
    if (done.wait_for(std::chrono::seconds(5)) != std::future_status::ready)
      stood_still.push_back(call);
    pending_.push_back(std::move(done));
  }
  std::unique_ptr<device::PeerAccess> access_ = device::make_host_peer_access();
  std::vector<std::future<void>> pending_;
};

TEST(DeviceSymmetricMemory, IsUsableByOthersWhileTheDriverWaits) {
  int here = 0, there = 0;
  const Stream first{Device::cpu(), &here}, second{Device::cpu(), &there};
  const auto driver = std::make_shared<SlowDriver>();
  device::ShareableMemory memory(driver, first, nullptr);
  constexpr std::size_t kSegment = device::ShareableMemory::kSegmentBytes, kSmall = 4096;
  const auto give = [&](std::size_t bytes, Stream stream) {
    return memory.allocate(bytes, MemoryTag::activations, stream);
  };
  void* const a = give(kSmall, first);
  int turns = 0;
  driver->other = [&] {
    void* const small = give(kSmall, first);
    EXPECT_EQ(memory.segment_of(small, kSmall), a);
    memory.deallocate(small, kSmall, MemoryTag::activations, first);
    ++turns;
  };
  driver->which = "allocate";
  void* const b = give(kSegment, second);
  driver->which = "export";
  (void)memory.exported(b);
  // The second stream needs memory that the first has freed; meanwhile the first may still take
  // some.
  driver->refuses = true;
  driver->which = "wait";
  EXPECT_EQ(give(kSmall, second), static_cast<std::byte*>(a) + 2 * kSmall)
      << "it gets the part that no thread took meanwhile";
  EXPECT_EQ(turns, 3);
  EXPECT_THAT(driver->stood_still, IsEmpty());
  memory.segments().closed_elsewhere();  // no other process has opened the exported memory
}

TEST(Slices, CoverEveryElementOnce) {
  Call call;
  call.operation = Operation::all_gather_v;
  call.dtype = DType::f32;
  call.counts = {5, 0, 12, 3};
  call.count = 20;
  const device::Slicing slicing =
      device::slicing_of(call, 4, 4 * 4 * 4);  // 4 elements of each part
  EXPECT_EQ(slicing.length, 4);
  EXPECT_EQ(slicing.number, 3);
  std::vector<int> seen(20);
  for (std::int64_t s = 0; s < slicing.number; ++s) {
    std::int64_t staged = 0;
    for (const device::Piece& piece : device::pieces_of(call.counts, slicing, s)) {
      EXPECT_EQ(piece.staged, staged);
      staged += piece.count;
      for (std::int64_t i = 0; i < piece.count; ++i)
        ++seen[static_cast<std::size_t>(piece.device + i)];
    }
    const Call slice = device::sliced(call, slicing, s, nullptr, nullptr);
    EXPECT_EQ(std::accumulate(slice.counts.begin(), slice.counts.end(), std::int64_t{0}), staged);
  }
  EXPECT_THAT(seen, Each(1));
}

// The last slice may have a single element, and none is empty.
TEST(Slices, AreNoMoreThanNeeded) {
  Call call;
  call.operation = Operation::all_reduce;
  call.dtype = DType::f32;
  for (call.count = 1; call.count < 40; ++call.count)
    for (std::int64_t fit = 1; fit < 10; ++fit) {
      const device::Slicing slicing = device::slicing_of(call, 4, fit * 4);
      std::int64_t covered = 0;
      for (std::int64_t s = 0; s < slicing.number; ++s) {
        const std::int64_t count = device::slice_count(call.count, slicing, s);
        EXPECT_GT(count, 0) << s << " of " << call.count << " by " << fit;
        EXPECT_LE(count, fit);
        covered += count;
      }
      EXPECT_EQ(covered, call.count) << "by " << fit;
    }
}

}  // namespace
}  // namespace shoal::collectives
