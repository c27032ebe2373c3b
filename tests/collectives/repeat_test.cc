// The fast path of small calls, and its parts: a lock that costs its usual owner little, and
// operations that are reused.
#include <array>
#include <atomic>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

#include "support/error_text.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/native/owner_lock.h"

namespace shoal::collectives {
namespace {

using shoal::test::error_text;
using ::testing::HasSubstr;

CommunicatorOptions patient() {
  CommunicatorOptions options;
  options.deadline_seconds = 60;
  return options;
}

// The owner enters by the fast path, by the slow path, and not at all.
TEST(OwnerLock, AdmitsOneThreadAtATime) {
  native::OwnerLock lock;
  const auto in_another_thread = [](auto&& body) { std::thread(body).join(); };
  lock.lock();
  in_another_thread([&] { EXPECT_FALSE(lock.try_lock_as_guest()); });
  lock.unlock();
  EXPECT_TRUE(lock.enter());
  in_another_thread([&] { EXPECT_FALSE(lock.try_lock_as_guest()); });
  lock.leave();
  std::latch in(1), out(1);
  std::thread guest([&] {
    EXPECT_TRUE(lock.try_lock_as_guest());
    in.count_down();
    out.wait();
    lock.unlock();
  });
  in.wait();
  EXPECT_FALSE(lock.enter());
  EXPECT_FALSE(lock.try_lock());
  out.count_down();
  guest.join();
  EXPECT_TRUE(lock.enter());
  // Another thread locks, which ends the ownership once the owner has left.
  in_another_thread([&] { EXPECT_FALSE(lock.try_lock()); });
  lock.leave();
  EXPECT_FALSE(lock.enter());
  in_another_thread([&] {
    lock.lock();
    lock.unlock();
  });
  EXPECT_TRUE(lock.try_lock());
  in_another_thread([&] { EXPECT_FALSE(lock.try_lock()); });
  lock.unlock();
}

// First an owner and a second thread, then three equal threads increment a counter under the lock.
TEST(OwnerLock, ExcludesOtherThreads) {
  constexpr int kTimes = 20'000;
  native::OwnerLock lock;
  std::int64_t guarded = 0, entered = 0;
  std::atomic<bool> over{false};
  std::thread guest([&] {
    while (!over) {
      if (!lock.try_lock_as_guest()) continue;
      const std::lock_guard held(lock, std::adopt_lock);
      ++guarded;
      ++entered;
    }
  });
  for (int i = 0; i < kTimes; ++i) {
    const std::lock_guard held(lock);
    ++guarded;
  }
  over = true;
  guest.join();
  EXPECT_EQ(guarded, kTimes + entered);
  const auto count = [&] {
    for (int i = 0; i < kTimes; ++i) {
      const std::lock_guard held(lock);
      ++guarded;
    }
  };
  std::thread one(count), two(count);
  count();
  one.join();
  two.join();
  EXPECT_EQ(guarded, 4 * kTimes + entered);
}

// The fast path for a repeated call still checks its buffers.
TEST(Native, ARepeatedCallIsCheckedAndUsesItsOwnBuffers) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto node = native::make_node_communicator(world.rank, 2, store, "test/node", patient());
    const auto reduce = [&](const float* from, float* to) {
      return node->all_reduce(from, to, 2, DType::f32, ReduceOp::sum);
    };
    std::array<float, 8> x{1, 2, 3, 4, 5, 6, 7, 8}, y{};
    for (int i = 0; i < 3; ++i) reduce(x.data(), y.data())->wait();
    EXPECT_THAT(y, ::testing::ElementsAre(2, 4, 0, 0, 0, 0, 0, 0));
    EXPECT_THAT(error_text([&] { reduce(nullptr, y.data()); }), HasSubstr("null pointer"));
    EXPECT_THAT(error_text([&] { reduce(x.data(), nullptr); }), HasSubstr("null pointer"));
    EXPECT_THAT(error_text([&] { reduce(x.data() + 1, x.data()); }), HasSubstr("overlap"));
    EXPECT_THAT(error_text([&] { reduce(x.data(), x.data() + 1); }), HasSubstr("overlap"));
    EXPECT_THAT(error_text([&] {
                  node->all_reduce(x.data(), y.data(), 2, DType::f32, ReduceOp::sum,
                                   Stream{Device::cuda(0), nullptr});
                }),
                HasSubstr("stream"));
    reduce(x.data() + 2, x.data())->wait();      // adjacent
    reduce(x.data() + 2, x.data() + 4)->wait();  // adjacent on the other side
    reduce(x.data() + 2, x.data() + 2)->wait();  // in place
    EXPECT_THAT(x, ::testing::ElementsAre(6, 8, 6, 8, 6, 8, 7, 8));
  });
}

// Works that a caller still holds are not reused, and may outlive their communicator.
TEST(Native, WorksLiveAsLongAsTheirCallersHoldThem) {
  constexpr std::size_t kKept = 40;
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    auto node = native::make_node_communicator(world.rank, 2, store, "test/node", patient());
    std::array<std::array<float, 2>, kKept> values;
    std::vector<WorkPtr> works;
    for (std::size_t i = 0; i < kKept; ++i) {
      values[i] = {static_cast<float>(i), 1};
      works.push_back(
          node->all_reduce(values[i].data(), values[i].data(), 2, DType::f32, ReduceOp::sum));
      if (i % 3 == 0) works.back()->wait();
      float other = 1;
      if (i % 4 == 0) node->all_reduce(&other, &other, 1, DType::f32, ReduceOp::sum)->wait();
    }
    for (std::size_t i = 0; i < kKept; ++i) {
      works[i]->wait();
      EXPECT_THAT(values[i], ::testing::ElementsAre(2 * i, 2));
    }
    node->barrier()->wait();
    float never = 1;
    if (world.rank == 0)
      works.push_back(node->all_reduce(&never, &never, 1, DType::f32, ReduceOp::sum));
    node.reset();
    if (world.rank == 0) {
      EXPECT_THAT(error_text([&] { works.back()->wait(); }), HasSubstr("destroyed"));
    }
    EXPECT_TRUE(works.front()->test());
    // They are destroyed in another thread than the one that made them, the last one last.
    std::thread([&works] { works.erase(works.begin(), works.begin() + kKept / 2); }).join();
    works.clear();
  });
}

}  // namespace
}  // namespace shoal::collectives
