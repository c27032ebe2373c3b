// Direct messages between ranks' buffers on different hosts: the message plans for all numbers of
// ranks, and communicators of device memory that use them, with host memory in place of the device.
// On a GPU whose memory a card can reach: tests/gpu/gpudirect_test.cc.
#include <numeric>
#include <random>

#include "play.h"
#include <gtest/gtest.h>

#include "shoal/collectives/backend/device/rdma_memory.h"

namespace shoal::collectives {
namespace {

using Numbers = std::vector<std::int64_t>;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

std::vector<std::string> hosts_of(int ranks, int hosts, std::mt19937& random) {
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank)
    names.push_back("host " + std::to_string(random() % static_cast<unsigned>(hosts)));
  return names;
}

// Executes the messages of all ranks. Element i of rank r's input is 1000 r + i + 1.
struct Exchanged {
  Exchanged(const std::vector<Call>& of, const std::vector<std::string>& hosts)
      : calls(of), where(hosts) {
    std::vector<PlayedRank> ranks;
    const int size = where.size();
    for (int rank = 0; rank < size; ++rank) {
      const Call& call = calls[at(rank)];
      const bool broadcasts = call.operation == Operation::broadcast;
      PlayedRank played;
      played.program = device::messages_of(call, rank, where);
      played.inputs = broadcasts && rank != call.root ? 0 : call.send_bytes(rank, size);
      played.outputs = call.recv_bytes(rank, size);
      played.output_at = broadcasts ? 0 : played.inputs;
      played.memory.resize(at(played.output_at + played.outputs));
      for (std::int64_t i = 0; i < played.inputs; ++i)
        played.memory[at(i)] = static_cast<Element>(1000 * rank + i + 1);
      inputs.emplace_back(played.memory.begin(), played.memory.begin() + played.inputs);
      ranks.push_back(std::move(played));
    }
    const Played result = play(std::move(ranks), Arithmetic::integers, {.seed = 7, .eager = false});
    outputs = result.outputs;
    messages = result.messages;
    for (int rank = 0; rank < size; ++rank) {
      const device::OwnPart own = device::own_part(calls[at(rank)], rank, size);
      for (std::int64_t i = 0; i < own.count; ++i)
        outputs[at(rank)][at(own.to + i)] = inputs[at(rank)][at(own.from + i)];
    }
  }
  std::vector<Call> calls;
  hierarchical::Placement where;
  std::vector<std::vector<Element>> inputs, outputs;
  std::vector<int> messages;
};

// Each part goes to one rank of each other host, and that host's other ranks read it there.
TEST(RdmaMessages, GatherEachPartOnceToEachHost) {
  std::mt19937 random(1);
  for (int size = 1; size <= 17; ++size) {
    const auto hosts = hosts_of(size, 1 + size / 3, random);
    Call call{.operation = Operation::all_gather_v};
    for (int rank = 0; rank < size; ++rank) call.counts.push_back(random() % 4);
    call.count = std::accumulate(call.counts.begin(), call.counts.end(), std::int64_t{0});
    const Exchanged exchanged(std::vector<Call>(at(size), call), hosts);
    std::int64_t begin = 0;
    for (int owner = 0; owner < size; begin += call.counts[at(owner++)]) {
      const std::int64_t count = call.counts[at(owner)];
      EXPECT_EQ(exchanged.messages[at(owner)], count > 0 ? exchanged.where.nodes() - 1 : 0);
      for (int rank = 0; rank < size; ++rank) {
        const int carrier = device::carrier_of(owner, rank, exchanged.where);
        ASSERT_EQ(exchanged.where.node_of(carrier), exchanged.where.node_of(rank));
        for (std::int64_t i = 0; i < count; ++i)
          ASSERT_EQ(exchanged.outputs[at(carrier)][at(begin + i)],
                    static_cast<Element>(1000 * owner + i + 1))
              << size << " ranks: " << owner << " to " << rank << " by " << carrier;
      }
    }
  }
}

TEST(RdmaMessages, BroadcastGatherAndScatterReachEveryRank) {
  std::mt19937 random(2);
  for (int size = 2; size <= 17; ++size) {
    const auto hosts = hosts_of(size, size, random);
    const int root = static_cast<int>(random() % static_cast<unsigned>(size));
    const auto all = [&](Operation operation, std::int64_t count) {
      return Exchanged(
          std::vector<Call>(at(size), Call{.operation = operation, .count = count, .root = root}),
          hosts);
    };
    const Exchanged broadcast = all(Operation::broadcast, 40), gather = all(Operation::gather, 3),
                    scatter = all(Operation::scatter, 3);
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_EQ(broadcast.outputs[at(rank)], broadcast.inputs[at(root)]);
      for (std::int64_t i = 0; i < 3; ++i) {
        EXPECT_EQ(gather.outputs[at(root)][at(3 * rank + i)], gather.inputs[at(rank)][at(i)]);
        EXPECT_EQ(scatter.outputs[at(rank)][at(i)], scatter.inputs[at(root)][at(3 * rank + i)]);
      }
    }
  }
}

TEST(RdmaMessages, AllToAllSupportsUnequalParts) {
  std::mt19937 random(3);
  for (int size = 2; size <= 17; ++size) {
    std::vector<Call> calls(at(size), Call{.operation = Operation::all_to_all_v});
    for (Call& call : calls) call.counts = call.recv_counts = Numbers(at(size));
    for (int from = 0; from < size; ++from)
      for (int to = 0; to < size; ++to) {
        const std::int64_t count = random() % 3;
        calls[at(from)].counts[at(to)] = calls[at(to)].recv_counts[at(from)] = count;
        calls[at(from)].count += count;
      }
    const Exchanged exchanged(calls, hosts_of(size, 3, random));
    const auto begin = [](const Numbers& counts, int rank) {
      return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
    };
    for (int from = 0; from < size; ++from)
      for (int to = 0; to < size; ++to)
        for (std::int64_t i = 0; i < calls[at(from)].counts[at(to)]; ++i)
          ASSERT_EQ(exchanged.outputs[at(to)][at(begin(calls[at(to)].recv_counts, from) + i)],
                    exchanged.inputs[at(from)][at(begin(calls[at(from)].counts, to) + i)]);
  }
}

}  // namespace
}  // namespace shoal::collectives
