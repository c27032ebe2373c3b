// What every backend checks about a call before anything moves.
#pragma once

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/transport/control.h"
#include "shoal/kernels/reduction.h"

namespace shoal::collectives {

// One call, as the queue of a backend keeps it. Counts as passed to the method.
struct Call {
  Operation operation = Operation::barrier;
  const void* send = nullptr;
  void* recv = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;
  int root = -1;

  // Bytes of the whole send and recv buffer of one rank.
  std::int64_t send_bytes(int size) const;
  std::int64_t recv_bytes(int size) const;
  bool reduces() const {
    return operation == Operation::all_reduce || operation == Operation::reduce_scatter;
  }
};

// Throws invalid_argument: negative count, null pointer, avg of integers, root outside the group,
// buffers that overlap without being in place, a stream that is not the host's.
void check_call(const Call& call, int rank, int size, Stream stream);

std::string_view to_string(Operation operation);
// "all_reduce of 16 f32, sum"
std::string describe(const Call& call);
std::string describe(const Descriptor& descriptor);

kernels::Reduce kernel_operation(ReduceOp op);  // avg is a sum that is scaled afterwards

}  // namespace shoal::collectives
