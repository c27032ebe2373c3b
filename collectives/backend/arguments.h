// What every backend checks about a call before anything moves.
#pragma once

#include <bit>
#include <optional>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/transport/operation.h"
#include "shoal/kernels/reduction.h"

namespace shoal::collectives {

// What the user called, where a call is a step of it inside a host or between hosts: that is what
// ranks compare and what messages name.
struct OuterCall {
  Signature signature;
  std::uint32_t number = 0;
};

// The arguments of a call without counts and factors: enough to see that it is like another.
struct PlainCall {
  // In one word, which is compared at once.
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

// One call, as the queue of a backend keeps it.
struct Call {
  Operation operation = Operation::barrier;
  const void* send = nullptr;  // null where this rank's is not used
  void* recv = nullptr;
  std::int64_t count = 0;  // as passed to the method; the sum of `counts` where there are many
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;
  int root = -1;  // or the peer of a message
  double factor = 1;
  std::vector<std::int64_t> counts{};       // of a _v operation; all_to_all_v: what this rank sends
  std::vector<std::int64_t> recv_counts{};  // of all_to_all_v
  Stream stream{};
  std::optional<OuterCall> outer{};

  // Bytes of the whole send and recv buffer of that rank.
  std::int64_t send_bytes(int rank, int size) const;
  std::int64_t recv_bytes(int rank, int size) const;
  bool reduces() const { return collectives::reduces(operation); }
  PlainCall plain() const {
    return {{operation, dtype, op, stream.device.type, root}, send, recv, count};
  }
};

// Throws invalid_argument: negative count, null pointer, avg of integers, root outside the group,
// buffers that overlap without being in place, a stream that is not of the `device` kind.
void check_call(const Call& call, int rank, int size, DeviceType device = DeviceType::cpu);

// Of the larger of a rank's buffers, the same for every rank: what selection tables speak of. 0 for
// all_to_all_v, whose ranks know only their own counts.
std::int64_t table_bytes(const Call& call, int size);

// What the ranks must agree on: of a step the outer call's, its own hashed into `counts`.
Signature signature_of(const Call& call);
// "all_reduce of 16 f32, sum"
std::string describe(const Call& call);

kernels::Reduce kernel_operation(ReduceOp op);  // avg is a sum that is scaled afterwards

}  // namespace shoal::collectives
