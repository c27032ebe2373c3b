// The signature of an operation: the values that ranks must agree on before data moves (decision
// 5).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

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
std::string_view to_string(Operation operation);

constexpr bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce_scatter ||
         operation == Operation::reduce || operation == Operation::reduce_scatter_v;
}
constexpr bool has_root(Operation operation) {
  return operation == Operation::broadcast || operation == Operation::reduce ||
         operation == Operation::gather || operation == Operation::scatter;
}
constexpr bool has_counts(Operation operation) {
  return operation == Operation::reduce_scatter_v || operation == Operation::all_gather_v ||
         operation == Operation::all_to_all_v;
}
constexpr bool is_message(Operation operation) {
  return operation == Operation::send || operation == Operation::recv;
}

// Travels with every control message and every data message between hosts.
struct Signature {
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  std::uint8_t reduce = 0;     // ReduceOp
  std::uint8_t algorithm = 0;  // chosen by this rank or forced by the options; 0: neither
  std::int32_t root = -1;      // or the receiver of a message
  // As passed to the call; the sum if there are several. 0 for all_to_all_v, whose counts differ
  // between ranks and are compared pair by pair.
  std::int64_t count = 0;
  std::uint64_t counts = 0;  // hash of the counts of a _v operation; else 0

  friend bool operator==(const Signature&, const Signature&) = default;
};
// "all_reduce of 16 f32, sum"
std::string describe(const Signature& signature);

// FNV-1a; never 0.
std::uint64_t hash_counts(std::span<const std::int64_t> counts);

// The name of a ReduceOp's number.
std::string_view reduce_name(std::uint8_t reduce);

}  // namespace shoal::collectives
