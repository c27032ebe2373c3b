// The operations, the reductions, and a call's signature: the values that ranks must agree on
// before data moves (decision 5).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "shoal/collectives/transport/reduction.h"
#include "shoal/kernels/reduction.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::collectives {

enum class Operation : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  reduce_scatter_v,
  all_gather_v,
  all_to_all_v,
  send,
  recv,
  barrier,
  split  // ranks exchange color and key
};

// Number of elements in a rank's whole buffer.
enum class Extent : std::uint8_t {
  none,
  count,       // `count`
  ranks,       // `count` for each rank
  own,         // this rank's entry of `counts`
  counts,      // all of `counts`
  recv_counts  // all of `recv_counts`
};

struct OperationTraits {
  std::string_view name;
  Operation base;  // the operation without _v, as in selection tables
  Extent send, recv;
  bool reduces = false;
  bool has_root = false;
  bool only_root_sends = false, only_root_receives = false;  // other ranks have no such buffer
};

// Indexed by Operation. Sizes, checks, names and signatures follow from this table.
inline constexpr std::array kOperationTraits{
    OperationTraits{"all_reduce", Operation::all_reduce, Extent::count, Extent::count, true},
    OperationTraits{"reduce_scatter", Operation::reduce_scatter, Extent::ranks, Extent::count,
                    true},
    OperationTraits{"all_gather", Operation::all_gather, Extent::count, Extent::ranks},
    OperationTraits{"broadcast", Operation::broadcast, Extent::count, Extent::count, false, true},
    OperationTraits{"reduce", Operation::reduce, Extent::count, Extent::count, true, true, false,
                    true},
    OperationTraits{"gather", Operation::gather, Extent::count, Extent::ranks, false, true, false,
                    true},
    OperationTraits{"scatter", Operation::scatter, Extent::ranks, Extent::count, false, true, true},
    OperationTraits{"all_to_all", Operation::all_to_all, Extent::ranks, Extent::ranks},
    OperationTraits{"reduce_scatter_v", Operation::reduce_scatter, Extent::counts, Extent::own,
                    true},
    OperationTraits{"all_gather_v", Operation::all_gather, Extent::own, Extent::counts},
    OperationTraits{"all_to_all_v", Operation::all_to_all, Extent::counts, Extent::recv_counts},
    OperationTraits{"send", Operation::send, Extent::count, Extent::none},
    OperationTraits{"recv", Operation::recv, Extent::none, Extent::count},
    OperationTraits{"barrier", Operation::barrier, Extent::none, Extent::none},
    OperationTraits{"split", Operation::split, Extent::count, Extent::ranks}};

static_assert(kOperationTraits.size() == static_cast<std::size_t>(Operation::split) + 1);
inline constexpr OperationTraits kUnknownOperation{"?", Operation::split, Extent::none,
                                                   Extent::none};

// A value received from another rank may be out of range; it gives kUnknownOperation.
constexpr const OperationTraits& traits(Operation operation) {
  const auto row = static_cast<std::size_t>(operation);
  return row < kOperationTraits.size() ? kOperationTraits[row] : kUnknownOperation;
}
constexpr std::string_view to_string(Operation operation) { return traits(operation).name; }
constexpr bool reduces(Operation operation) { return traits(operation).reduces; }
constexpr bool has_root(Operation operation) { return traits(operation).has_root; }
constexpr Operation base_operation(Operation operation) { return traits(operation).base; }
constexpr bool has_counts(Operation operation) { return base_operation(operation) != operation; }
constexpr bool is_message(Operation operation) {
  return operation == Operation::send || operation == Operation::recv;
}

struct ReduceTraits {
  std::string_view name;
  kernels::Reduce fold;            // combines two elements; avg and premultiplied_sum also scale
  bool rounds = false;             // a result need not equal any of the elements
  std::string_view no_integers{};  // why integers are refused; empty: they are allowed
};
// Indexed by ReduceOp. Names, checks, kernels and precisions follow from this table.
inline constexpr std::array kReduceTraits{
    ReduceTraits{"sum", kernels::Reduce::sum, true},
    ReduceTraits{"prod", kernels::Reduce::prod, true},
    ReduceTraits{"min", kernels::Reduce::min},
    ReduceTraits{"max", kernels::Reduce::max},
    ReduceTraits{"avg", kernels::Reduce::sum, true, "take the sum and divide as you need"},
    ReduceTraits{"premultiplied_sum", kernels::Reduce::sum, true,
                 "only floating dtypes can be scaled"}};
static_assert(kReduceTraits.size() == static_cast<std::size_t>(ReduceOp::premultiplied_sum) + 1);
inline constexpr ReduceTraits kUnknownReduction{"?", kernels::Reduce::sum};

// A value received from another rank may be out of range; it gives kUnknownReduction.
constexpr const ReduceTraits& traits(ReduceOp op) {
  const auto row = static_cast<std::size_t>(op);
  return row < kReduceTraits.size() ? kReduceTraits[row] : kUnknownReduction;
}
constexpr std::string_view to_string(ReduceOp op) { return traits(op).name; }

// Travels with every control message and every data message between hosts.
struct Signature {
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  ReduceOp reduce = ReduceOp::sum;
  std::uint8_t algorithm = 0;  // chosen by this rank or forced by the options; 0: neither
  std::int32_t root = -1;      // for a message: the receiver
  // As passed to the call; for _v operations the sum of the counts. 0 for all_to_all_v, whose
  // counts differ between ranks and are compared pair by pair.
  std::int64_t count = 0;
  std::uint64_t counts = 0;  // hash of the counts of a _v operation; else 0

  friend bool operator==(const Signature&, const Signature&) = default;
};
// "all_reduce of 16 f32, sum"
std::string describe(const Signature& signature);

// FNV-1a; never 0.
std::uint64_t hash_counts(std::span<const std::int64_t> counts);

}  // namespace shoal::collectives
