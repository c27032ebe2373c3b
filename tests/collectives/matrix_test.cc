// The correctness matrix: operation x dtype x reduction x ranks x size x alignment x memory x
// placement x algorithm x hosts x order x transport. The normal run covers every pair of values.
// With SHOAL_TEST_FULL (./dev test --full) it runs a thousand times as many combinations, and 64
// MiB + 3.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <utility>

#include "loopback_ranks.h"
#include "pairwise.h"
#include "predictable.h"
#include "shm_connection.h"
#include "support/efa.h"
#include "support/ranks.h"
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend_communicator.h"
#include "shoal/collectives/select/algorithm_selector.h"
#include "shoal/collectives/transport/fabric/fabric.h"

namespace shoal::collectives {
namespace {

using test::Case;
using test::Memory;
using ::testing::IsEmpty;

bool full_run() {
  const char* value = std::getenv("SHOAL_TEST_FULL");
  return value && std::string_view(value) == "1";
}

// All transports but shm run programs over an Endpoint. efa and efa-direct are simulated by
// support/efa_provider, without ordering.
const std::vector<std::string> kTransports{"shm", "shm endpoint", "loopback", "shuffled loopback",
                                           "tcp", "udp",          "efa",      "efa-direct"};
constexpr int kFirstFabric = 4;
const std::vector<std::string> kAlgorithms{
    "",      "direct",  "ring",  "halving_doubling", "recursive_doubling", "tree",
    "chain", "sharded", "bruck", "pairwise"};
constexpr int kShmAlgorithms = 3;  // shm can force only the first three
const std::vector<int> kRanks{2, 3, 4, 5, 6, 7, 8, 9, 1};
// Inline, one block, and several slices with a remainder.
const std::vector<std::int64_t> kCounts{0, 1, 3, 129, 2055, 30001};
enum class Offset { none, element, byte };
// Emulated hosts: one host, hosts of equal size, hosts of two ranks, hosts of sizes like 3 + 2 + 1,
// and ranks that alternate between hosts.
enum class Hosts { one, halves, pairs, uneven, turns };
constexpr int kPlacements = 5;

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
  placement,
  order,  // 1: fixed order
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
          kPlacements,
          2,
          static_cast<int>(kTransports.size())};
}

template <typename Values>
auto pick(const Values& values, int index) {
  return values[static_cast<std::size_t>(index)];
}

std::vector<std::string> hosts_of(Hosts hosts, int size) {
  const int first = (size + 1) / 2, second = first + ((size - first) * 2 + 2) / 3;
  std::vector<std::string> names;
  for (int rank = 0; rank < size; ++rank) {
    const int number = hosts == Hosts::halves   ? rank / first
                       : hosts == Hosts::pairs  ? rank / 2
                       : hosts == Hosts::uneven ? (rank >= first) + (rank >= second)
                       : hosts == Hosts::turns  ? rank % 2
                                                : 0;
    names.push_back(fmt::format("host{}", number));
  }
  return names;
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

bool offers(Operation of, int number) {
  return number == 0 ||
         std::ranges::count(candidates(of), parse_algorithm(pick(kAlgorithms, number))) > 0;
}

// Each algorithm exists only for some operations, which decide the other values it fits.
bool fits_algorithm(int axis, int value, int number) {
  return std::ranges::any_of(test::kOperations, [&](Operation candidate) {
    if (!offers(candidate, number)) return false;
    Case c{candidate, DType::f32, ReduceOp::sum, 1, candidate == Operation::broadcast};
    if (axis == operation && candidate != pick(test::kOperations, value)) return false;
    if (axis == reduction) c.op = pick(test::kOps, value);
    if (axis == place) c.in_place = value == 1;
    return test::is_possible(c);
  });
}

bool fits_transport(int axis, int value, int number) {
  if (axis == ranks) return pick(kRanks, value) > 1 || number < kFirstFabric;
  if (axis == algorithm) return number > 0 || value < kShmAlgorithms;
  return axis != placement || number > 1 || value == 0;
}

// Levels need several hosts, and a host with more than one rank.
bool fits_placement(int axis, int value, int number) {
  return axis != ranks || number == 0 || pick(kRanks, value) > 2;
}

// Each rule that excludes a row involves two axes.
bool allowed(int a, int i, int b, int j) {
  if (b == algorithm && !fits_algorithm(a, i, j)) return false;
  if (b == transport && !fits_transport(a, i, j)) return false;
  if (b == placement && !fits_placement(a, i, j)) return false;
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

// Caches allowed() in a table.
class AllowedPairs {
 public:
  AllowedPairs() : sizes_(axis_sizes()) {
    for (const int size : sizes_) {
      first_.push_back(values_);
      values_ += size;
    }
    table_.resize(static_cast<std::size_t>(values_) * static_cast<std::size_t>(values_));
    for (int a = 0; a < axes(); ++a)
      for (int b = a + 1; b < axes(); ++b)
        for (int i = 0; i < pick(sizes_, a); ++i)
          for (int j = 0; j < pick(sizes_, b); ++j) table_[at(a, i, b, j)] = allowed(a, i, b, j);
  }
  bool operator()(int a, int i, int b, int j) const { return table_[at(a, i, b, j)]; }
  bool operator()(const test::Row& row) const {
    for (int a = 0; a < axes(); ++a)
      for (int b = a + 1; b < axes(); ++b)
        if (!(*this)(a, pick(row, a), b, pick(row, b))) return false;
    return true;
  }

 private:
  int axes() const { return static_cast<int>(sizes_.size()); }
  std::size_t at(int a, int i, int b, int j) const {
    return static_cast<std::size_t>(pick(first_, a) + i) * static_cast<std::size_t>(values_) +
           static_cast<std::size_t>(pick(first_, b) + j);
  }
  std::vector<int> sizes_, first_;
  int values_ = 0;
  std::vector<bool> table_;
};

// One rank's communicators over one transport, one after another. Over shm make_communicator makes
// each. Elsewhere they are groups on one engine, which connects once.
class RankOfMatrix {
 public:
  RankOfMatrix(const World& world, Store& store, const std::string& over,
               const test::LoopbackRanks& loopback)
      : world_(world), store_(store), over_(over) {
    if (over == "shm") return;
    const auto deadline = Deadline::in_seconds(kSeconds);
    engine_ = net::make_net_engine(endpoint(loopback, deadline),
                                   std::make_unique<transport::ControlLinks>(
                                       world.rank, world.size, store, "matrix/control", deadline),
                                   world.local_size, options({}));
    // Keeps the engine while the other communicators come and go.
    base_ = std::make_unique<net::NetCommunicator>(
        net::make_world_group(engine_, world.size, options({})), options({}));
  }

  // Collective.
  Communicator& communicator(const test::Row& row) {
    const std::array<int, 3> wanted{row[placement], row[algorithm], row[order]};
    if (current_ && wanted == current_is_) return *current_;
    current_.reset();
    current_is_ = wanted;
    CommunicatorOptions chosen = options(pick(kAlgorithms, row[algorithm]));
    chosen.fixed_order = row[order] == 1;
    const std::string prefix = fmt::format("matrix/{}", ++number_);
    if (!engine_) {
      prefixed_ = make_prefix_store(prefix, {std::shared_ptr<Store>{}, &store_});
      current_ = make_communicator(world_, *prefixed_, chosen);
    } else if (row[placement] == 0) {
      current_ = std::make_unique<net::NetCommunicator>(
          net::make_world_group(engine_, world_.size, chosen), chosen);
    } else {
      hierarchical::HierarchicalCommunicator::Plan plan;
      plan.first_id = engine_->next_group();
      plan.flat = net::make_world_group(engine_, world_.size, chosen);
      plan.hosts = hosts_of(static_cast<Hosts>(row[placement]), world_.size);
      plan.prefix = prefix;
      plan.make_node = [this](int rank, int size, const std::string& inner,
                              const CommunicatorOptions& of, std::vector<int> members) {
        return native::make_node_communicator(rank, size, store_, inner, of, std::move(members));
      };
      // Set by a rule, so that operations still go by levels, and the rails use the algorithm.
      if (!chosen.algorithm.empty()) chosen.collectives = "@" + std::exchange(chosen.algorithm, {});
      current_ = std::make_unique<hierarchical::HierarchicalCommunicator>(std::move(plan), chosen);
    }
    return *current_;
  }

 private:
  static constexpr double kSeconds = 60;

  static CommunicatorOptions options(const std::string& forced) {
    CommunicatorOptions result;
    result.algorithm = forced;
    result.deadline_seconds = kSeconds;
    return result;
  }
  std::unique_ptr<transport::Endpoint> endpoint(const test::LoopbackRanks& loopback,
                                                Deadline deadline) const {
    if (over_ == "loopback") return loopback.endpoint(world_.rank);
    if (over_ == "shuffled loopback") {
      const transport::FaultOptions shuffled{7, 0.3, 100, 4};
      return loopback.endpoint(world_.rank, &shuffled);
    }
    if (over_ == "shm endpoint")
      return transport::connect_shm_endpoint(world_.rank, world_.size, store_, "matrix/shm",
                                             deadline);
    return fabric::make_fabric_endpoint(fabric::fabric_options(over_), world_.rank, world_.size,
                                        world_.rank, world_.size, store_, "matrix/fabric",
                                        deadline);
  }

  const World world_;
  Store& store_;
  const std::string over_;
  std::shared_ptr<net::NetEngine> engine_;
  std::unique_ptr<Communicator> base_;
  std::shared_ptr<Store> prefixed_;  // outlives current_
  std::unique_ptr<Communicator> current_;
  std::array<int, 3> current_is_{};
  int number_ = 0;
};

// Runs ranks as threads. All rows have the same transport and number of ranks.
std::vector<std::string> run_rows(int size, const std::string& over, std::vector<test::Row> rows) {
  std::ranges::stable_sort(rows, {}, [](const test::Row& row) {
    return std::array<int, 3>{row[placement], row[algorithm], row[order]};
  });
  std::mutex mutex;
  std::vector<std::string> wrong;
  const test::LoopbackRanks loopback(size, 1024);
  const auto errors = shoal::test::thread_rank_errors(size, [&](const World& world, Store& store) {
    RankOfMatrix rank(world, store, over, loopback);
    for (const test::Row& row : rows) {
      const std::string line = test::check(rank.communicator(row), case_of(row));
      if (line.empty()) continue;
      const std::lock_guard lock(mutex);
      wrong.push_back(
          fmt::format("{} (algorithm '{}', transport '{}', hosts {}{})", line,
                      pick(kAlgorithms, row[algorithm]), over,
                      fmt::join(hosts_of(static_cast<Hosts>(row[placement]), size), ","),
                      row[order] == 1 ? ", fixed order" : ""));
    }
  });
  for (std::size_t rank = 0; rank < errors.size(); ++rank)
    if (!errors[rank].empty()) wrong.push_back(fmt::format("rank {}: {}", rank, errors[rank]));
  return wrong;
}

// The parameter is the index of a transport.
class Matrix : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (GetParam() < kFirstFabric) return;
    shoal::test::use_efa_provider();
    // "efa" selects efa-direct if it is offered; here it is not.
    ::setenv("SHOAL_TEST_EFA_FABRIC", over() == "efa" ? "efa" : "", 1);
    if (fabric::fabric_providers().empty()) GTEST_SKIP() << "built without libfabric";
  }
  static std::string over() { return pick(kTransports, GetParam()); }
};

// Covers every pair of values of the other axes, for each transport.
TEST_P(Matrix, EveryPairOfValuesIsExact) {
  const AllowedPairs pairs;
  const auto fits = [&](int axis, int value) {
    return axis == transport ? value == GetParam() : pairs(axis, value, transport, GetParam());
  };
  const auto over_this = [&](int a, int i, int b, int j) {
    return pairs(a, i, b, j) && fits(a, i) && fits(b, j);
  };
  std::map<int, std::vector<test::Row>> rows;  // keyed by the number of ranks
  const int variants = GetParam() < kFirstFabric ? 3 : 1;
  for (int variant = 0; variant < variants; ++variant)  // each covers other triples
    for (const test::Row& row : test::pairwise_rows(axis_sizes(), over_this, variant))
      rows[pick(kRanks, row[ranks])].push_back(row);
  ASSERT_GE(rows.size(), kRanks.size() - 1);
  for (auto& [size, list] : rows) EXPECT_THAT(run_rows(size, over(), std::move(list)), IsEmpty());
}

// Runs every fifth combination over shm and every 61st over other transports. These steps are
// primes, so that no axis is favoured. Offsets alternate.
TEST_P(Matrix, ManyCombinationsAreExact) {
  if (!full_run()) GTEST_SKIP() << "runs only with ./dev test --full";
  const int step = over() == "shm" ? 5 : 61;
  const std::vector<int> sizes = axis_sizes();
  const AllowedPairs pairs;
  std::size_t cases = 0;
  for (int r = 0; r < static_cast<int>(kRanks.size()); ++r) {
    if (!allowed(ranks, r, transport, GetParam())) continue;
    std::vector<test::Row> rows;
    test::Row row(sizes.size(), 0);
    row[ranks] = r;
    row[transport] = GetParam();
    int number = r;  // index among the possible combinations
    for (;;) {
      row[offset] = number % 3;
      if (pairs(row) && number++ % step == 0) rows.push_back(row);
      std::size_t axis = operation;
      while (axis < transport && (axis == offset || ++row[axis] == sizes[axis])) row[axis++] = 0;
      if (axis == transport) break;
    }
    cases += rows.size();
    EXPECT_THAT(run_rows(pick(kRanks, r), over(), std::move(rows)), IsEmpty());
  }
  RecordProperty("cases", std::to_string(cases));  // for --gtest_output
}

INSTANTIATE_TEST_SUITE_P(Over, Matrix, ::testing::Range(0, static_cast<int>(kTransports.size())),
                         [](const auto& one) {
                           std::string name = pick(kTransports, one.param);
                           std::ranges::replace_if(
                               name, [](char c) { return c == ' ' || c == '-'; }, '_');
                           return name;
                         });

// 64 MiB and 3 elements in the full run. Otherwise several slices of each plan, or one or two under
// ThreadSanitizer, which takes minutes for each.
#if defined(__SANITIZE_THREAD__)
constexpr std::int64_t kLargeBytes = 300 << 10, kFullBytes = 3 << 20;
#else
constexpr std::int64_t kLargeBytes = 3 << 20, kFullBytes = 64 << 20;
#endif
class LargeBuffers : public ::testing::TestWithParam<std::string> {};

std::vector<std::string> check_large(Communicator& communicator, const std::string& forced,
                                     std::int64_t bytes) {
  std::vector<std::string> wrong;
  int variant = 0;
  for (const Operation op : test::kOperations)
    for (const Memory where : {Memory::plain, Memory::symmetric}) {
      if (!forced.empty() && !std::ranges::count(candidates(op), parse_algorithm(forced))) continue;
      Case c{op, ++variant % 4 == 0 ? DType::bf16 : DType::f32, ReduceOp::sum};
      c.in_place = op == Operation::broadcast || variant % 2 == 0;
      if (!test::is_possible(c)) c.in_place = false;
      c.misalignment = 4;
      c.memory = where;
      c.root = communicator.size() - 1;
      const bool whole = op == Operation::all_reduce || op == Operation::broadcast ||
                         op == Operation::reduce || op == Operation::send;
      c.count =
          bytes / static_cast<std::int64_t>(size_of(c.dtype)) / (whole ? 1 : communicator.size()) +
          3;
      if (std::string line = test::check(communicator, c); !line.empty())
        wrong.push_back(std::move(line));
    }
  return wrong;
}

TEST_P(LargeBuffers, AreExact) {
  const bool network = GetParam() != "shm";
  if (network && fabric::fabric_providers().empty()) GTEST_SKIP() << "built without libfabric";
  const bool full = full_run();
  const std::int64_t bytes = full ? kFullBytes : kLargeBytes;
  const auto algorithms =
      std::span(kAlgorithms).first(network ? kAlgorithms.size() : kShmAlgorithms);
  for (const int size : full ? std::vector<int>{2, 3, 4} : std::vector<int>{3}) {
    std::mutex mutex;
    std::vector<std::string> wrong;
    shoal::test::run_thread_ranks(size, [&](const World& world, Store& store) {
      for (const std::string& forced : algorithms) {
        CommunicatorOptions options;
        options.algorithm = forced;
        options.transport = GetParam();
        options.deadline_seconds = 120;
        const auto communicator = make_communicator(world, store, options);
        const auto lines = check_large(*communicator, forced, bytes);
        const std::lock_guard lock(mutex);
        wrong.insert(wrong.end(), lines.begin(), lines.end());
      }
    });
    EXPECT_THAT(wrong, IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(Over, LargeBuffers, ::testing::Values("shm", "tcp"),
                         [](const auto& one) { return one.param; });

TEST(Pairwise, CoversExactlyTheAllowedPairs) {
  const auto sizes = axis_sizes();
  const AllowedPairs pairs;
  const auto rows = test::pairwise_rows(sizes, pairs);
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
  // The two largest axes alone need this many rows. A covering with three times as many would be
  // poor.
  EXPECT_GE(rows.size(), std::size(test::kOperations) * kRanks.size());
  EXPECT_LT(rows.size(), 3 * std::size(test::kOperations) * kRanks.size());
  EXPECT_EQ(rows, test::pairwise_rows(sizes, pairs));
  EXPECT_NE(rows, test::pairwise_rows(sizes, pairs, 1));
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

// One rank's results have one wrong byte, which the checks above must detect.
class Damaging final : public BackendCommunicator {
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

TEST(Predictable, DetectsOneWrongByteInAndAfterTheResult) {
  Damaging communicator;
  const Case c{Operation::all_reduce, DType::i32, ReduceOp::sum, 100};
  for (const std::int64_t byte : {0, 201, 399, 400, 463}) {
    communicator.damaged_byte = byte;
    EXPECT_EQ(test::wrong_in(communicator, c), 1) << byte;
  }
}

}  // namespace
}  // namespace shoal::collectives
