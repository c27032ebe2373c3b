// The record of one call of a Communicator, and the checks before data moves.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "shoal/collectives/transport/operation.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives {

// The user's call, if another call is a step of it inside a host or between hosts. Ranks compare
// the user's call, and messages name it.
struct OuterCall {
  Signature signature;
  std::uint32_t number = 0;
};

// The arguments of a call except the counts by rank and the factor: enough to recognise a repeat.
struct PlainCall {
  // Packed into one word that is stored and compared whole: loading a word right after storing its
  // bytes one by one would stall.
  class Kind {
   public:
    constexpr Kind() = default;
    constexpr Kind(Operation operation, DType dtype, ReduceOp op, DeviceType device,
                   std::int32_t root)
        : word_(byte(operation) | byte(dtype) << 8 | byte(op) << 16 | byte(device) << 24 |
                std::uint64_t{static_cast<std::uint32_t>(root)} << 32) {}
    Operation operation() const { return static_cast<Operation>(word_ & 0xff); }
    DType dtype() const { return static_cast<DType>(word_ >> 8 & 0xff); }
    ReduceOp op() const { return static_cast<ReduceOp>(word_ >> 16 & 0xff); }
    std::int32_t root() const { return static_cast<std::int32_t>(word_ >> 32); }
    friend bool operator==(const Kind&, const Kind&) = default;

   private:
    template <typename Enum>
    static constexpr std::uint64_t byte(Enum value) {
      return static_cast<std::uint8_t>(value);
    }
    std::uint64_t word_ = 0;
  };
  Kind kind;
  const void* send;
  void* recv;
  std::int64_t count;
};

struct Call {
  Operation operation = Operation::barrier;
  const void* send = nullptr;  // null if unused on this rank
  void* recv = nullptr;
  std::int64_t count = 0;  // as passed to the method; _v operations: the sum of `counts`
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;
  int root = -1;  // of a send or recv: the peer
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
// group, buffers that overlap without being in place, a stream on a device of another type than
// `device`.
void check_call(const Call& call, int rank, int size, DeviceType device = DeviceType::cpu);

// The size in bytes that selection tables use: a rank's larger buffer, equal on every rank. 0 for
// all_to_all_v, because each rank knows only its own counts.
std::int64_t table_bytes(const Call& call, int size);

// The values that ranks must agree on. A step has the signature of its outer call, with its own
// arguments hashed into `counts`.
Signature signature_of(const Call& call);
// "all_reduce of 16 f32, sum"
std::string describe(const Call& call);

}  // namespace shoal::collectives
