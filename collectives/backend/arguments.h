// Checks that every backend makes on a call before data moves.
#pragma once

#include <bit>
#include <optional>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/transport/operation.h"
#include "shoal/kernels/reduction.h"

namespace shoal::collectives {

// The user's call, for calls that are a step of it inside a host or between hosts. Ranks compare
// it, and messages name it.
struct OuterCall {
  Signature signature;
  std::uint32_t number = 0;
};

// The arguments of a call without counts and factors, enough to recognise a repeated call.
struct PlainCall {
  // Packed into one word for a single comparison.
  struct Kind {
    Operation operation;
    DType dtype;
    ReduceOp op;
    DeviceType device;
    std::int32_t root;
    friend bool operator==(const Kind& a, const Kind& b) {
      return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
    }
  };
  Kind kind;
  const void* send;
  void* recv;
  std::int64_t count;
};

// One call, as a backend queues it.
struct Call {
  Operation operation = Operation::barrier;
  const void* send = nullptr;  // null if unused on this rank
  void* recv = nullptr;
  std::int64_t count = 0;  // as passed to the method; the sum of `counts` if there are several
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;
  int root = -1;  // or a message's peer
  double factor = 1;
  std::vector<std::int64_t> counts{};       // _v operations; all_to_all_v: this rank's send counts
  std::vector<std::int64_t> recv_counts{};  // all_to_all_v
  Stream stream{};
  std::optional<OuterCall> outer{};

  // Size in bytes of a rank's whole send and recv buffers.
  std::int64_t send_bytes(int rank, int size) const;
  std::int64_t recv_bytes(int rank, int size) const;
  bool reduces() const { return collectives::reduces(operation); }
  PlainCall plain() const {
    return {{operation, dtype, op, stream.device.type, root}, send, recv, count};
  }
};

// Throws invalid_argument for: negative count, null pointer, avg of integers, root outside the
// group, buffers that overlap without being in place, a stream of another kind than `device`.
void check_call(const Call& call, int rank, int size, DeviceType device = DeviceType::cpu);

// Bytes of the larger of a rank's buffers, the same on every rank: the size in selection tables. 0
// for all_to_all_v, whose ranks know only their own counts.
std::int64_t table_bytes(const Call& call, int size);

// The values that ranks must agree on. A step has the outer call's signature, with its own hashed
// into `counts`.
Signature signature_of(const Call& call);
// "all_reduce of 16 f32, sum"
std::string describe(const Call& call);

kernels::Reduce kernel_operation(ReduceOp op);  // avg is a sum that is scaled afterwards

}  // namespace shoal::collectives
