// Memory is registered with the transport once and not for each message. Registration that pins
// pages (EFA) costs many times as much as a message.
#include <map>
#include <vector>

#include "loopback_ranks.h"
#include "support/calls.h"
#include "support/efa.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::with_deadline;
using test::LoopbackRanks;
using ::testing::Each;

struct Ranks {
  std::shared_ptr<net::NetEngine> engine;
  std::unique_ptr<Communicator> communicator;
};

// The communicator that make_communicator builds for two ranks on each of two hosts, and its
// engine.
Ranks two_by_two(const World& world, Store& store, const std::string& transport) {
  const auto options = with_deadline(30);
  const auto deadline = Deadline::in_seconds(30);
  fabric::FabricOptions fabric;
  fabric.provider = transport;
  auto endpoint = fabric::make_fabric_endpoint(fabric, world.rank, world.size, world.rank % 2, 2,
                                               store, "test/fabric", deadline);
  Ranks ranks;
  ranks.engine = net::make_net_engine(std::move(endpoint),
                                      std::make_unique<transport::ControlLinks>(
                                          world.rank, world.size, store, "test/control", deadline),
                                      2, options);
  hierarchical::HierarchicalCommunicator::Plan plan;
  plan.first_id = ranks.engine->next_group();
  plan.flat = net::make_world_group(ranks.engine, world.size, options);
  plan.hosts = {"a", "a", "b", "b"};
  plan.prefix = "test/hierarchical";
  plan.make_node = [&store](int rank, int size, const std::string& prefix,
                            const CommunicatorOptions& of, std::vector<int> members) {
    return native::make_node_communicator(rank, size, store, prefix, of, std::move(members));
  };
  ranks.communicator =
      std::make_unique<hierarchical::HierarchicalCommunicator>(std::move(plan), options);
  return ranks;
}

class Pinned : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    shoal::test::use_efa_provider();
    ::setenv("SHOAL_TEST_EFA_FABRIC", GetParam() == "efa" ? "efa" : "", 1);
    if (fabric::fabric_providers().empty()) GTEST_SKIP() << "built without libfabric";
  }
};

TEST_P(Pinned, StepsRegisterNothingAfterTheFirstFew) {
  const std::string transport = GetParam();
  shoal::test::ProcessRanks ranks(4, [&](const World& world, Store& store) {
    const auto [engine, c] = two_by_two(world, store, transport);
    constexpr std::int64_t kCount = 300000;  // more than one piece for each rail
    const Buffer memory(c->memory_resource(), kCount * 4, MemoryTag::communication);
    const auto step = [&] {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        c->all_reduce(memory.data(), memory.data(), kCount, dtype, ReduceOp::sum)->wait();
        c->reduce_scatter(memory.data(),
                          static_cast<std::byte*>(memory.data()) +
                              world.rank * kCount / 4 * static_cast<std::int64_t>(size_of(dtype)),
                          kCount / 4, dtype, ReduceOp::sum)
            ->wait();
      }
    };
    std::vector<std::int64_t> registrations;
    for (int i = 0; i < 20; ++i) {
      step();
      if (i >= 2) registrations.push_back(engine->endpoint_statistics().registrations);
    }
    c->barrier()->wait();
    EXPECT_GT(registrations.front(), 0);
    EXPECT_THAT(registrations, Each(registrations.front()));
  });
  for (const auto& outcome : ranks.wait(60)) EXPECT_EQ(outcome.exit_status, 0) << outcome.error;
}

// The caller's own buffer, which register_buffer() keeps registered. A provider without remote
// writes copies every message and registers none.
class PinnedWrites : public Pinned {};
TEST_P(PinnedWrites, ARegisteredBufferIsNotRegisteredForEachMessage) {
  const std::string transport = GetParam();
  shoal::test::ProcessRanks ranks(4, [&](const World& world, Store& store) {
    const auto [engine, c] = two_by_two(world, store, transport);
    std::vector<float> values(100000, 1.0f);
    const auto sent_by = [&] {
      const auto before = engine->endpoint_statistics().registrations;
      for (int i = 0; i < 5; ++i) {
        if (world.rank == 0) c->send(values.data(), 100000, DType::f32, 2)->wait();
        if (world.rank == 2) c->recv(values.data(), 100000, DType::f32, 0)->wait();
      }
      c->barrier()->wait();
      return engine->endpoint_statistics().registrations - before;
    };
    const bool in_it = world.rank % 2 == 0;
    EXPECT_GE(sent_by(), in_it ? 5 : 0);
    auto registration = c->register_buffer(values.data(), 400000);
    EXPECT_EQ(sent_by(), 0);
    registration.reset();
    EXPECT_GE(sent_by(), in_it ? 5 : 0);
  });
  for (const auto& outcome : ranks.wait(60)) EXPECT_EQ(outcome.exit_status, 0) << outcome.error;
}

INSTANTIATE_TEST_SUITE_P(Providers, Pinned, ::testing::Values("efa", "efa-direct"));
INSTANTIATE_TEST_SUITE_P(Providers, PinnedWrites, ::testing::Values("efa-direct"));

TEST(RegisterBuffer, IsAHintThatEveryBackendAccepts) {
  const LoopbackRanks loopback(2);
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    std::vector<float> values(20000, 1.0f);
    std::vector<std::unique_ptr<Communicator>> communicators;
    communicators.push_back(loopback.communicator(world, store, with_deadline(20)));
    communicators.push_back(make_communicator(world, store, with_deadline(20)));
    communicators.push_back(make_single_communicator("native", {}));
    for (auto& c : communicators) {
      const float before = values.back();
      const auto registration = c->register_buffer(values.data(), 80000);
      EXPECT_NE(registration, nullptr) << c->size();
      c->all_reduce(values.data(), values.data(), 20000, DType::f32, ReduceOp::sum)->wait();
      EXPECT_EQ(values.back(), before * static_cast<float>(c->size()));
    }
  });
}

TEST(RegisteredMemory, IsRegisteredWhileItIsAllocated) {
  // Counts the current registrations.
  class Counting final : public transport::Endpoint {
   public:
    Counting(std::unique_ptr<transport::Endpoint> inner, int& now)
        : inner_(std::move(inner)), now_(now) {}
    int rank() const override { return inner_->rank(); }
    int size() const override { return inner_->size(); }
    std::string name() const override { return "counting"; }
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
    bool progress() override { return inner_->progress(); }
    void sleep(int microseconds) override { inner_->sleep(microseconds); }
    std::unique_ptr<transport::MemoryRegion> register_memory(void*, std::int64_t) override {
      struct Region final : transport::MemoryRegion {
        explicit Region(int& count) : now(count) { ++now; }
        ~Region() override { --now; }
        int& now;
      };
      return std::make_unique<Region>(now_);
    }
    transport::EndpointStatistics statistics() const override { return inner_->statistics(); }

   private:
    std::unique_ptr<transport::Endpoint> inner_;
    int& now_;
  };
  int now = 0;
  const LoopbackRanks loopback(1);
  const auto engine =
      net::make_net_engine(std::make_unique<Counting>(loopback.endpoint(0), now), nullptr, 1, {});
  const auto host = make_host_memory();
  net::RegisteredMemory memory(engine, *host);
  {
    const Buffer large(memory, 100000, MemoryTag::communication);
    const Buffer small(memory, 100, MemoryTag::communication);
    EXPECT_EQ(now, 1);
  }
  // Memory is deregistered before another message can be sent.
  const auto other = engine->register_memory(&now, sizeof now);
  EXPECT_EQ(now, 1);
}

}  // namespace
}  // namespace shoal::collectives
