// What ranks must agree on before data moves: one operation's signature (decision 5).
#pragma once

#include <cstdint>

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
  barrier
};

// Travels with every control message and every data message between hosts.
struct Signature {
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  std::uint8_t reduce = 0;     // ReduceOp
  std::uint8_t algorithm = 0;  // as forced by the options; 0: not
  std::int32_t root = -1;      // or the peer of send and recv
  std::int64_t count = 0;      // as passed to the call; the sum where there are many
  std::uint64_t counts = 0;    // hash of the counts of a _v operation; 0 for others

  friend bool operator==(const Signature&, const Signature&) = default;
};

}  // namespace shoal::collectives
