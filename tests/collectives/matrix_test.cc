// The correctness matrix: operation x dtype x reduction x ranks x size x alignment x memory x place
// x algorithm x transport. Every pair of values in the normal run; every combination of the axes
// that matter, and 64 MiB + 3, where SHOAL_TEST_FULL is set (./dev test --full).
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

#include "loopback_ranks.h"
#include "pairwise.h"
#include "predictable.h"
#include "support/ranks.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/call_communicator.h"
#include "shoal/collectives/transport/shm_endpoint.h"

namespace shoal::collectives {
namespace {

using test::Case;
using test::Memory;
using ::testing::IsEmpty;

bool full_run() {
  const char* value = std::getenv("SHOAL_TEST_FULL");
  return value && std::string_view(value) == "1";
}

// What CommunicatorOptions::transport offers is one more line here. The last three run programs
// over an endpoint: that of shared memory, and the loopback in order and shuffled.
const std::vector<std::string> kTransports{"", "shm endpoint", "loopback", "shuffled loopback"};
const std::vector<std::string> kAlgorithms{"", "direct", "ring"};
const std::vector<int> kRanks{2, 3, 4, 5, 6, 7, 8, 9, 1};
// Inline, one block, several slices with a remainder.
const std::vector<std::int64_t> kCounts{0, 1, 3, 129, 2055, 30001};
enum class Offset { none, element, byte };

enum Axis {
  ranks,
  operation,
  dtype,
  reduction,
  count,
  offset,
  memory,
  place,
  algorithm,
  transport
};

std::vector<int> axis_sizes() {
  return {static_cast<int>(kRanks.size()),
          static_cast<int>(std::size(test::kOperations)),
          static_cast<int>(std::size(test::kDTypes)),
          static_cast<int>(std::size(test::kOps)),
          static_cast<int>(kCounts.size()),
          3,
          3,
          2,
          static_cast<int>(kAlgorithms.size()),
          static_cast<int>(kTransports.size())};
}

template <typename Values>
auto pick(const Values& values, int index) {
  return values[static_cast<std::size_t>(index)];
}

Case case_of(const test::Row& row) {
  Case c;
  c.operation = pick(test::kOperations, row[operation]);
  c.dtype = pick(test::kDTypes, row[dtype]);
  c.op = pick(test::kOps, row[reduction]);
  c.count = pick(kCounts, row[count]);
  c.in_place = row[place] == 1;
  const auto off = static_cast<Offset>(row[offset]);
  c.misalignment = off == Offset::none   ? 0
                   : off == Offset::byte ? 1
                                         : static_cast<int>(size_of(c.dtype));
  c.memory = static_cast<Memory>(row[memory]);
  c.root = (row[dtype] + row[count]) % pick(kRanks, row[ranks]);
  return c;
}

// What is_possible() rules out involves two axes at a time. Algorithms are all_reduce's.
bool allowed(int a, int i, int b, int j) {
  if (a == operation && b == algorithm && j > 0)
    return pick(test::kOperations, i) == Operation::all_reduce;
  if (a == algorithm && b == transport && i > 0) return j == 0;
  Case c{Operation::all_reduce, DType::f32, ReduceOp::sum, 1, false, 0, Memory::plain, 0};
  const auto set = [&](int axis, int value) {
    if (axis == operation) c.operation = pick(test::kOperations, value);
    if (axis == dtype) c.dtype = pick(test::kDTypes, value);
    if (axis == reduction) c.op = pick(test::kOps, value);
    if (axis == place) c.in_place = value == 1;
  };
  const bool about_place = a == place || b == place;
  set(a, i);
  set(b, j);
  if (!about_place && c.operation == Operation::broadcast) c.in_place = true;
  return test::is_possible(c);
}

std::unique_ptr<Communicator> connect(const World& world, Store& store,
                                      const test::LoopbackRanks& loopback,
                                      const std::string& algorithm_name,
                                      const std::string& transport_name) {
  CommunicatorOptions options;
  options.algorithm = algorithm_name;
  options.deadline_seconds = 60;
  if (transport_name == "loopback") return loopback.communicator(world, store, options);
  if (transport_name == "shuffled loopback") {
    const FaultOptions shuffled{7, 0.3, 100, 4};
    return loopback.communicator(world, store, options, &shuffled);
  }
  const auto deadline = Deadline::in_seconds(options.deadline_seconds);
  if (transport_name == "shm endpoint")
    return make_net_communicator(
        connect_shm_endpoint(world.rank, world.size, store, "matrix/shm", deadline),
        std::make_unique<ControlLinks>(world.rank, world.size, store, "matrix/control", deadline),
        world.local_size, options);
  options.transport = transport_name;
  return make_communicator(world, store, options);
}

// Ranks that are threads, a Communicator for each algorithm and transport that the rows name.
std::vector<std::string> run_rows(int size, const std::vector<test::Row>& rows) {
  std::mutex mutex;
  std::vector<std::string> wrong;
  // Two wires: what runs over one knows nothing of the other.
  const test::LoopbackRanks in_order(size, 1024), shuffled(size, 1024);
  shoal::test::run_thread_ranks(size, [&](const World& world, Store& store) {
    std::vector<std::shared_ptr<Store>> stores;  // outlive their Communicators
    std::map<std::pair<int, int>, std::unique_ptr<Communicator>> communicators;
    for (const test::Row& row : rows) {
      auto& communicator = communicators[{row[algorithm], row[transport]}];
      if (!communicator) {
        const std::string over = pick(kTransports, row[transport]);
        stores.push_back(make_prefix_store(fmt::format("{}/{}", row[algorithm], row[transport]),
                                           {std::shared_ptr<Store>{}, &store}));
        communicator = connect(world, *stores.back(), over == "loopback" ? in_order : shuffled,
                               pick(kAlgorithms, row[algorithm]), over);
      }
      const std::string line = test::check(*communicator, case_of(row));
      if (line.empty()) continue;
      const std::lock_guard lock(mutex);
      wrong.push_back(fmt::format("{} (algorithm '{}', transport '{}')", line,
                                  pick(kAlgorithms, row[algorithm]),
                                  pick(kTransports, row[transport])));
    }
  });
  return wrong;
}

class Matrix : public ::testing::TestWithParam<int> {};

TEST_P(Matrix, EveryPairOfValuesIsExact) {
  std::vector<test::Row> rows;
  for (int variant = 0; variant < 4; ++variant)  // each gives other triples
    for (const test::Row& row : test::pairwise_rows(axis_sizes(), allowed, variant))
      if (pick(kRanks, row[ranks]) == GetParam()) rows.push_back(row);
  ASSERT_FALSE(rows.empty());
  EXPECT_THAT(run_rows(GetParam(), rows), IsEmpty());
}

TEST_P(Matrix, EveryCombinationIsExact) {
  if (!full_run()) GTEST_SKIP() << "only by ./dev test --full";
  const std::vector<int> sizes = axis_sizes();
  std::vector<test::Row> rows;
  test::Row row(sizes.size(), 0);
  row[ranks] = static_cast<int>(std::ranges::find(kRanks, GetParam()) - kRanks.begin());
  // Offsets by turns; algorithms only where they are a choice.
  for (;;) {
    row[offset] = static_cast<int>(rows.size() % 3);
    const Case c = case_of(row);
    const bool chosen =
        row[algorithm] == 0 || (row[transport] == 0 && c.operation == Operation::all_reduce);
    if (chosen && test::is_possible(c)) rows.push_back(row);
    std::size_t axis = 1;
    while (axis < sizes.size() && (axis == offset || ++row[axis] == sizes[axis])) row[axis++] = 0;
    if (axis == sizes.size()) break;
  }
  EXPECT_THAT(run_rows(GetParam(), rows), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Ranks, Matrix, ::testing::Range(1, 10));

// 64 MiB and 3 elements in the full run; several slices of every plan otherwise.
TEST(LargeBuffers, AreExact) {
  const bool full = full_run();
  const std::int64_t bytes = full ? std::int64_t{64} << 20 : std::int64_t{3} << 20;
  for (const int size : full ? std::vector<int>{2, 3, 4} : std::vector<int>{3}) {
    std::mutex mutex;
    std::vector<std::string> wrong;
    shoal::test::run_thread_ranks(size, [&](const World& world, Store& store) {
      int variant = 0;
      for (const std::string& forced : kAlgorithms) {
        CommunicatorOptions options;
        options.algorithm = forced;
        options.deadline_seconds = 120;
        const auto communicator = make_communicator(world, store, options);
        for (const Operation op : test::kOperations)
          for (const Memory where : {Memory::plain, Memory::symmetric}) {
            if (!forced.empty() && op != Operation::all_reduce) continue;
            Case c{op, ++variant % 4 == 0 ? DType::bf16 : DType::f32, ReduceOp::sum};
            c.in_place = op == Operation::broadcast || variant % 2 == 0;
            if (!test::is_possible(c)) c.in_place = false;
            c.misalignment = 4;
            c.memory = where;
            c.root = size - 1;
            const bool whole = op == Operation::all_reduce || op == Operation::broadcast ||
                               op == Operation::reduce || op == Operation::send;
            c.count = bytes / static_cast<std::int64_t>(size_of(c.dtype)) / (whole ? 1 : size) + 3;
            const std::string line = test::check(*communicator, c);
            const std::lock_guard lock(mutex);
            if (!line.empty()) wrong.push_back(line);
          }
      }
    });
    EXPECT_THAT(wrong, IsEmpty());
  }
}

TEST(Pairwise, CoversEveryAllowedPairAndNoOther) {
  const auto sizes = axis_sizes();
  const auto rows = test::pairwise_rows(sizes, allowed);
  std::set<std::array<int, 4>> seen;
  for (const auto& row : rows)
    for (int a = 0; a < static_cast<int>(sizes.size()); ++a)
      for (int b = a + 1; b < static_cast<int>(sizes.size()); ++b) {
        const int i = row[static_cast<std::size_t>(a)], j = row[static_cast<std::size_t>(b)];
        EXPECT_TRUE(allowed(a, i, b, j)) << a << " " << i << " " << b << " " << j;
        seen.insert({a, i, b, j});
      }
  std::size_t possible = 0;
  for (int a = 0; a < static_cast<int>(sizes.size()); ++a)
    for (int b = a + 1; b < static_cast<int>(sizes.size()); ++b)
      for (int i = 0; i < sizes[static_cast<std::size_t>(a)]; ++i)
        for (int j = 0; j < sizes[static_cast<std::size_t>(b)]; ++j)
          possible += allowed(a, i, b, j);
  EXPECT_EQ(seen.size(), possible);
  // The largest two axes alone need this many; a covering that needs three times as many is bad.
  EXPECT_GE(rows.size(), std::size(test::kOperations) * kRanks.size());
  EXPECT_LT(rows.size(), 3 * std::size(test::kOperations) * kRanks.size());
  EXPECT_EQ(rows, test::pairwise_rows(sizes, allowed));
  EXPECT_NE(rows, test::pairwise_rows(sizes, allowed, 1));
  for (const auto& row : rows)
    EXPECT_TRUE(test::is_possible(case_of(row))) << describe(case_of(row));
}

TEST(Pairwise, SmallAxesAreCoveredInFewRows) {
  const auto all = [](int, int, int, int) { return true; };
  EXPECT_EQ(test::pairwise_rows({2, 2}, all).size(), 4u);
  EXPECT_LE(test::pairwise_rows({2, 2, 2, 2}, all).size(), 6u);
  EXPECT_LE(test::pairwise_rows({3, 3, 3, 3}, all).size(), 13u);
  const auto unequal = [](int, int i, int, int j) { return i != j; };
  EXPECT_THROW(test::pairwise_rows({2, 2, 2}, unequal), std::exception);
}

// One rank whose results have one wrong byte: the checks above must not be blind.
class Damaging final : public CallCommunicator {
 public:
  Damaging() : memory_(make_host_memory()) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string backend() const override { return "damaging"; }
  MemoryResource& memory_resource() override { return *memory_; }
  CommunicatorStatistics statistics() const override { return {}; }
  void abort(std::string_view) override {}

  std::int64_t damaged_byte = 0;

 private:
  WorkPtr submit(Call&& call) override {
    auto* recv = static_cast<std::byte*>(call.recv);
    std::copy_n(static_cast<const std::byte*>(call.send), call.send_bytes(0, 1), recv);
    if (call.operation == Operation::all_reduce) recv[damaged_byte] ^= std::byte{1};
    return make_group_work({}, 1);
  }
  double deadline_seconds() const override { return 1; }
  std::unique_ptr<Communicator> make_split(const SplitPlan&) override { return nullptr; }

  std::unique_ptr<MemoryResource> memory_;
};

TEST(Predictable, SeesOneWrongByteInTheResultAndBehindIt) {
  Damaging communicator;
  const Case c{Operation::all_reduce, DType::i32, ReduceOp::sum, 100};
  for (const std::int64_t byte : {0, 201, 399, 400, 463}) {
    communicator.damaged_byte = byte;
    EXPECT_EQ(test::wrong_in(communicator, c), 1) << byte;
  }
}

}  // namespace
}  // namespace shoal::collectives
