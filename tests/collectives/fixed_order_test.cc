// fixed_order: sums of numbers that no float holds exactly must have the bits of the canonical tree
// over ranks, for all hosts, algorithms, message splits and transports.
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

#include "loopback_ranks.h"
#include "support/efa.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/algorithm/canonical_tree.h"
#include "shoal/collectives/algorithm/shard.h"
#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::ProcessRanks;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::avg, ReduceOp::premultiplied_sum,
                             ReduceOp::prod, ReduceOp::max};

double input_of(int rank, std::int64_t i) {
  auto bits = (static_cast<std::uint64_t>(rank) << 40) + static_cast<std::uint64_t>(i) + 1;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  bits ^= bits >> 31;
  const double mantissa = static_cast<double>(bits >> 11) * 0x1p-52 - 1.0;  // in [-1, 1)
  return std::ldexp(mantissa, static_cast<int>(bits % 7) - 3);
}
float factor_of(int rank) { return 0.3f + 0.7f * static_cast<float>(rank); }

// T: element type; A: accumulation type.
template <typename T, typename A>
struct Typed {
  static A term(ReduceOp op, int rank, std::int64_t i) {
    const A value = static_cast<A>(static_cast<T>(static_cast<A>(input_of(rank, i))));
    return op == ReduceOp::premultiplied_sum ? value * static_cast<A>(factor_of(rank)) : value;
  }
  static A combined(ReduceOp op, A a, A b) {
    if (op == ReduceOp::prod) return a * b;
    if (op == ReduceOp::max) return std::max(a, b);
    return a + b;
  }
  // The result over ranks [begin, begin + size) by the definition of the tree, or added from the
  // left.
  static A tree(ReduceOp op, int begin, int size, std::int64_t i) {
    if (size == 1) return term(op, begin, i);
    const int left = algorithm::canonical_left(size);
    return combined(op, tree(op, begin, left, i), tree(op, begin + left, size - left, i));
  }
  static A from_the_left(ReduceOp op, int size, std::int64_t i) {
    A sum = term(op, 0, i);
    for (int rank = 1; rank < size; ++rank) sum = combined(op, sum, term(op, rank, i));
    return sum;
  }
  static T rounded(ReduceOp op, A sum, int size) {
    if (op == ReduceOp::avg) sum *= static_cast<A>(1.0 / size);
    return static_cast<T>(sum);
  }
  static void fill(void* to, int rank, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      static_cast<T*>(to)[i] = static_cast<T>(static_cast<A>(input_of(rank, i)));
  }
  // Counts wrong elements of `got`, which starts at element `range.begin` of the whole result.
  static std::int64_t wrong(const void* got, ReduceOp op, int size, algorithm::Range range) {
    std::int64_t wrong = 0;
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      const T right = rounded(op, tree(op, 0, size, i), size);
      wrong += std::memcmp(static_cast<const T*>(got) + (i - range.begin), &right, sizeof(T)) != 0;
    }
    return wrong;
  }
};

template <typename Body>
auto with_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::bf16:
      return body(Typed<bfloat16, float>());
    case DType::f16:
      return body(Typed<float16, float>());
    case DType::f64:
      return body(Typed<double, double>());
    default:
      return body(Typed<float, float>());
  }
}

Reduction reduction_of(ReduceOp op, int rank) {
  return op == ReduceOp::premultiplied_sum ? Reduction::premultiplied_sum(factor_of(rank)) : op;
}

// Runs one operation on `count` elements of every rank. Returns a line if the bits differ from the
// tree's.
std::string check(Communicator& c, Operation operation, DType dtype, ReduceOp op,
                  std::int64_t count, bool symmetric) {
  const int rank = c.rank(), size = c.size();
  const auto bytes = static_cast<std::size_t>(count) * size_of(dtype);
  Buffer memory;
  std::vector<std::byte> plain(symmetric ? 0 : 2 * bytes);
  if (symmetric) memory = Buffer(c.memory_resource(), 2 * bytes, MemoryTag::communication);
  auto* const send = symmetric ? static_cast<std::byte*>(memory.data()) : plain.data();
  std::byte* const recv = send + bytes;
  with_type(dtype, [&](auto typed) { typed.fill(send, rank, count); });
  const Reduction reduction = reduction_of(op, rank);
  const int root = size - 1;
  std::vector<std::int64_t> counts(static_cast<std::size_t>(size), count / size);
  algorithm::Range mine{0, count};
  switch (operation) {
    case Operation::all_reduce:
      c.all_reduce(send, recv, count, dtype, reduction)->wait();
      break;
    case Operation::reduce:
      c.reduce(send, recv, count, dtype, reduction, root)->wait();
      if (rank != root) mine = {};
      break;
    case Operation::reduce_scatter:
      c.reduce_scatter(send, recv, count / size, dtype, reduction)->wait();
      mine = {rank * (count / size), (rank + 1) * (count / size)};
      break;
    default:  // rank 0's part is empty, and the last rank has the remainder
      counts.front() = 0;
      counts.back() = count - count / size * (size - 2);
      c.reduce_scatter_v(send, recv, counts, dtype, reduction)->wait();
      mine.begin = rank == 0 ? 0 : (rank - 1) * (count / size);
      mine.end = mine.begin + counts[static_cast<std::size_t>(rank)];
  }
  const auto wrong =
      with_type(dtype, [&](auto typed) { return typed.wrong(recv, op, size, mine); });
  if (wrong == 0) return {};
  return fmt::format("rank {} of {}: {} of {} {}, {}{}: {} wrong", rank, size, to_string(operation),
                     count, to_string(dtype), to_string(op), symmetric ? ", symmetric" : "", wrong);
}

constexpr Operation kReductions[] = {Operation::all_reduce, Operation::reduce,
                                     Operation::reduce_scatter, Operation::reduce_scatter_v};

std::vector<std::string> check_all(Communicator& c, const std::vector<std::int64_t>& counts) {
  std::vector<std::string> wrong;
  int turn = 0;
  for (const std::int64_t count : counts)
    for (const Operation operation : kReductions)
      for (const DType dtype : kFloats)
        for (const ReduceOp op : kOps) {
          const std::string line = check(c, operation, dtype, op, count, ++turn % 2 == 0);
          if (!line.empty()) wrong.push_back(line);
        }
  return wrong;
}

CommunicatorOptions fixed(const std::string& algorithm = "", const std::string& rules = "") {
  CommunicatorOptions options;
  options.fixed_order = true;
  options.deadline_seconds = 60;
  options.algorithm = algorithm;
  options.collectives = rules;
  return options;
}

// Real processes and transports come first, because they fork.
struct Job {
  std::string hosts, transport, algorithm, rules;
};
class FixedOrderProcesses : public ::testing::TestWithParam<Job> {};

TEST_P(FixedOrderProcesses, HaveTheBitsOfTheCanonicalTree) {
  const Job& job = GetParam();
  if (!job.transport.empty()) {
    shoal::test::use_efa_provider();
    if (fabric::fabric_providers().empty()) GTEST_SKIP() << "built without libfabric";
  }
  ProcessRanks ranks(static_cast<int>(job.hosts.size()), [&](const World& world, Store& store) {
    World placed = world;
    placed.host = job.hosts.substr(static_cast<std::size_t>(world.rank), 1);
    CommunicatorOptions options = fixed(job.algorithm, job.rules);
    options.transport = job.transport;
    const auto c = make_communicator(placed, store, options);
    auto wrong = check_all(*c, {129});
    const std::string large =
        check(*c, Operation::all_reduce, DType::f32, ReduceOp::sum, 300003, true);
    if (!large.empty()) wrong.push_back(large);
    if (!wrong.empty()) throw Error(ErrorCode::internal, wrong.front());
  });
  for (const auto& outcome : ranks.wait(100)) EXPECT_EQ(outcome.exit_status, 0) << outcome.error;
}

const std::string kCut = "all_reduce,reduce,reduce_scatter:@direct/4k";
INSTANTIATE_TEST_SUITE_P(
    Layouts, FixedOrderProcesses,
    ::testing::Values(Job{"aaaaaaaa", "", "", ""}, Job{"aaaabbbb", "tcp", "", ""},
                      Job{"aabbccdd", "tcp", "", kCut}, Job{"abcdefgh", "tcp", "", ""},
                      Job{"aaaabbbb", "efa", "", kCut}, Job{"aabbccdd", "efa", "", ""},
                      Job{"abcdefgh", "efa", "tree", ""}, Job{"aaabbb", "tcp", "", ""},
                      Job{"aaaaa", "tcp", "recursive_doubling", ""}),
    [](const auto& job) { return fmt::format("{}_{}", job.param.hosts, job.index); });

std::vector<std::string> run_layout(const std::string& hosts, const CommunicatorOptions& options,
                                    const std::vector<std::int64_t>& counts, bool shuffled) {
  const int size = static_cast<int>(hosts.size());
  const hierarchical::Placement where([&] {
    std::vector<std::string> names;
    for (const char letter : hosts) names.emplace_back(1, letter);
    return names;
  }());
  const test::LoopbackRanks loopback(size, 1024);
  const transport::FaultOptions faults{11, 0.3, 100, 3};
  std::mutex mutex;
  std::vector<std::string> wrong;
  shoal::test::run_thread_ranks(size, [&](const World& world, Store& store) {
    std::vector<std::string> names;
    for (const char letter : hosts) names.emplace_back(1, letter);
    const auto c =
        where.nodes() == 1
            ? native::make_node_communicator(world.rank, size, store, "test/node", options)
        : where.nodes() == size
            ? loopback.communicator(world, store, options, shuffled ? &faults : nullptr)
            : loopback.hierarchical(world, store, names, options, shuffled ? &faults : nullptr);
    const auto own = check_all(*c, counts);
    const std::lock_guard lock(mutex);
    wrong.insert(wrong.end(), own.begin(), own.end());
  });
  return wrong;
}

class FixedOrder : public ::testing::TestWithParam<std::string> {};

TEST_P(FixedOrder, HasTheBitsOfTheCanonicalTree) {
  EXPECT_THAT(run_layout(GetParam(), fixed(), {1, 67, 2055}, true), IsEmpty());
  EXPECT_THAT(run_layout(GetParam(), fixed(), {9011}, false), IsEmpty());
}

TEST_P(FixedOrder, HasTheSameBitsForEveryAlgorithmAndMessageSplit) {
  for (const char* algorithm : {"direct", "ring", "tree", "recursive_doubling", "inline"})
    EXPECT_THAT(run_layout(GetParam(), fixed(algorithm), {67}, false), IsEmpty()) << algorithm;
  EXPECT_THAT(run_layout(GetParam(), fixed("", "@direct/256#@tree/100"), {2055}, false), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Hosts, FixedOrder,
                         ::testing::Values("aaaaaaaa", "aaaabbbb", "aabbccdd", "abcdefgh", "aab",
                                           "abb", "abc", "aaaab", "aabbc", "aabbb", "abbbb",
                                           "aaabbb", "aabbcc", "aaaabb", "aabbccd", "aaaabbb",
                                           "abababab", "aaaaaaa", "abcdef", "aabcc"));

TEST(FixedOrder, DiffersFromASumFromTheLeft) {
  // Otherwise the tests above could not fail.
  for (int size = 4; size <= 8; ++size) {
    int differs = 0;
    for (std::int64_t i = 0; i < 1000; ++i)
      differs += Typed<float, float>::tree(ReduceOp::sum, 0, size, i) !=
                 Typed<float, float>::from_the_left(ReduceOp::sum, size, i);
    EXPECT_GT(differs, 100) << size;
  }
}

TEST(FixedOrder, IsRefusedByNccl) {
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    CommunicatorOptions options = fixed();
    options.backend = "nccl";
    try {
      make_communicator(world, store, options);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("an order of its own"));
    }
  });
}

}  // namespace
}  // namespace shoal::collectives
