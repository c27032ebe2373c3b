// Checks cleanup after a failure in a communicator of device memory: no host operation still uses
// its memory, and no buffer announced to other ranks stays open. Host memory stands in for the
// device, and the host communicator controls when its operations end.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/calls.h"
#include "support/error_text.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/device/device_communicator.h"
#include "shoal/collectives/backend_communicator.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::error_text;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Hooks between an engine and its host communicator.
struct Between {
  std::function<void(const Call&)> before = {};             // may throw
  std::function<WorkPtr(const Call&, WorkPtr)> after = {};  // returned to the engine
};

// Forwards the calls that an engine makes to exchange addresses, meet and send.
class Host final : public BackendCommunicator {
 public:
  Host(std::unique_ptr<Communicator> inner, std::shared_ptr<const Between> between)
      : inner_(std::move(inner)), between_(std::move(between)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string backend() const override { return inner_->backend(); }
  MemoryResource& memory_resource() override { return inner_->memory_resource(); }
  CommunicatorStatistics statistics() const override { return inner_->statistics(); }
  void abort(std::string_view reason) override { inner_->abort(reason); }

 protected:
  double deadline_seconds() const override { return 20; }
  WorkPtr submit(Call&& call) override {
    if (between_->before) between_->before(call);
    WorkPtr work = backend_of(*inner_).call(call);
    return between_->after ? between_->after(call, std::move(work)) : std::move(work);
  }
  std::vector<Place> exchange_places(Place own) override {
    std::vector<Place> places(static_cast<std::size_t>(size()));
    inner_->all_gather(&own, places.data(), sizeof own, DType::u8)->wait();
    return places;
  }
  std::unique_ptr<Communicator> make_split(const SplitPlan& plan) override {
    auto part = inner_->split(plan.ranks.empty() ? -1 : plan.color, plan.rank);
    return part ? std::make_unique<Host>(std::move(part), between_) : nullptr;
  }

 private:
  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<const Between> between_;
};

std::unique_ptr<Communicator> device(const World& world, Store& store, Between between) {
  return std::make_unique<device::DeviceCommunicator>(
      std::make_unique<Host>(make_communicator(world, store, shoal::test::with_deadline(20)),
                             std::make_shared<const Between>(std::move(between))),
      device::DeviceCommunicator::Options{.stream = {}, .host = "here", .deadline_seconds = 20});
}

// Calls `asked` when it is tested or waited for, and `gone` when it is dropped.
class Watched final : public Work {
 public:
  Watched(WorkPtr inner, std::function<void()> asked, std::function<void()> gone)
      : inner_(std::move(inner)), asked_(std::move(asked)), gone_(std::move(gone)) {}
  ~Watched() override {
    if (gone_) gone_();
  }
  bool test() override {
    if (asked_) asked_();
    return inner_->test();
  }
  void wait(Deadline deadline) override { inner_->wait(deadline); }
  double default_deadline_seconds() const override { return inner_->default_deadline_seconds(); }
  void block_stream(Stream stream) override { inner_->block_stream(stream); }

 private:
  WorkPtr inner_;
  std::function<void()> asked_, gone_;
};

// Ranks exchange the addresses of their buffers through memory of the call that waits. If a message
// fails meanwhile, the host operations must end before this memory is freed.
TEST(DeviceEnds, HostOperationsEndBeforeTheirMemoryIsFreed) {
  std::vector<std::string> events;  // on rank 0's engine
  std::vector<std::string> errors(2);
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    std::atomic<bool> armed = false, gathers = false;
    Between between;
    if (world.rank == 0) {
      between.before = [&](const Call& call) {
        if (gathers && call.operation == Operation::barrier) events.emplace_back("a last barrier");
      };
      between.after = [&](const Call& call, WorkPtr work) -> WorkPtr {
        if (!armed) return work;
        if (call.operation == Operation::recv)
          return std::make_unique<Watched>(
              std::move(work),
              [&] {
                if (gathers) throw_error(ErrorCode::internal, "the message broke");
              },
              nullptr);
        if (call.operation != Operation::all_gather) return work;
        gathers = true;
        return std::make_unique<Watched>(std::move(work), nullptr,
                                         [&] { events.emplace_back("the gather is dropped"); });
      };
    }
    const auto c = device(world, store, between);
    Buffer word(c->memory_resource(), 4, MemoryTag::gradients),
        values(c->memory_resource(), 4096, MemoryTag::gradients);
    const auto sum = [&] {
      return c->all_reduce(values.data(), values.data(), 1024, DType::f32, ReduceOp::max);
    };
    sum()->wait();
    armed = true;
    std::string& error = errors[static_cast<std::size_t>(world.rank)];
    if (world.rank == 0) {
      const WorkPtr message = c->recv(word.data(), 1, DType::f32, 1), late = sum();
      error = error_text([&] { late->wait(); });
      store.set("over", "yes");
    } else {
      (void)store.get("over", Deadline::in_seconds(20));
      error = error_text([&] { sum()->wait(); });
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("the message broke"));
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 0"), HasSubstr("the message broke")));
  ASSERT_GE(events.size(), 2U);
  events.resize(2);
  EXPECT_THAT(events, ElementsAre("a last barrier", "the gather is dropped"));
}

// Rank 1 fails before or after it has announced its segments. The others cannot know which ranks
// have received the announcement.
TEST(DeviceEnds, RanksThatFailWhileTheyExchangeAddressesLeaveNothing) {
  for (const bool told : {false, true}) {
    SCOPED_TRACE(told);
    const auto errors = shoal::test::thread_rank_errors(3, [&](const World& world, Store& store) {
      Between between;
      const auto fail = [&] { throw_error(ErrorCode::internal, "rank {} fails", world.rank); };
      if (world.rank == 1 && !told)
        between.before = [fail](const Call& call) {
          if (call.operation == Operation::all_gather && call.count > 16) fail();
        };
      if (world.rank == 1 && told)
        between.before = [fail](const Call& call) {
          if (call.operation == Operation::all_reduce) fail();
        };
      try {
        (void)device(world, store, between);
      } catch (const Error&) {
        store.set("failed " + std::to_string(world.rank), "yes");
        throw;
      }
    });
    EXPECT_THAT(errors[1], HasSubstr("rank 1 fails"));
    for (const int rank : {0, 2})
      EXPECT_NE(errors[static_cast<std::size_t>(rank)], "") << "rank " << rank;
    EXPECT_EQ(device::Segments::count(), 0U);
  }
}

TEST(DeviceEnds, SegmentsLiveUntilTheirLastHolderReleasesThem) {
  const std::shared_ptr<device::PeerAccess> access = device::make_host_peer_access();
  device::Segments::Pointer own = device::Segments::make(access);
  const std::uint64_t number = own->number();
  device::Segments::Pointer other = device::Segments::find(number);
  EXPECT_EQ(other, own);
  own.reset();
  EXPECT_EQ(access.use_count(), 2) << "a neighbour still uses them";
  EXPECT_NE(device::Segments::find(number), nullptr);
  other.reset();
  EXPECT_EQ(access.use_count(), 1);
  EXPECT_EQ(device::Segments::find(number), nullptr);
  EXPECT_NE(device::Segments::make(access)->number(), number);
  EXPECT_EQ(device::Segments::count(), 0U);
}

}  // namespace
}  // namespace shoal::collectives
