#include "shoal/collectives/backend/arguments.h"

#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

bool overlap(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + static_cast<std::uintptr_t>(b_bytes) &&
         y < x + static_cast<std::uintptr_t>(a_bytes);
}

std::string text_of(Operation operation, std::int64_t count, DType dtype, ReduceOp op, int root) {
  if (operation == Operation::barrier) return "barrier";
  std::string text = fmt::format("{} of {} {}", to_string(operation), count, to_string(dtype));
  if (operation == Operation::all_reduce || operation == Operation::reduce_scatter)
    text += fmt::format(", {}", to_string(op));
  if (operation == Operation::broadcast) text += fmt::format(", root {}", root);
  return text;
}

}  // namespace

std::int64_t Call::send_bytes(int size) const {
  const std::int64_t bytes = count * static_cast<std::int64_t>(size_of(dtype));
  return operation == Operation::reduce_scatter ? bytes * size : bytes;
}

std::int64_t Call::recv_bytes(int size) const {
  const std::int64_t bytes = count * static_cast<std::int64_t>(size_of(dtype));
  return operation == Operation::all_gather ? bytes * size : bytes;
}

void check_call(const Call& call, int rank, int size, Stream stream) {
  const std::string_view name = to_string(call.operation);
  SHOAL_CHECK(stream.device.is_cpu(), "{}: this backend moves host memory, the stream is on {}",
              name, shoal::to_string(stream.device));
  SHOAL_CHECK(call.count >= 0, "{}: count {}", name, call.count);
  SHOAL_CHECK(call.count <= (std::int64_t{1} << 46) / size, "{}: count {} is out of range", name,
              call.count);
  if (call.operation == Operation::broadcast)
    SHOAL_CHECK(call.root >= 0 && call.root < size, "broadcast: root {} in a group of {}",
                call.root, size);
  if (call.reduces() && call.op == ReduceOp::premultiplied_sum)
    throw_error(ErrorCode::unavailable, "{}: premultiplied_sum is not offered yet", name);
  if (call.reduces())
    SHOAL_CHECK(call.op != ReduceOp::avg || is_floating(call.dtype),
                "{}: avg of {}; take the sum and divide as you need", name, to_string(call.dtype));
  if (call.count == 0 || call.operation == Operation::barrier) return;
  SHOAL_CHECK(call.send && call.recv, "{} of {} elements: null pointer", name, call.count);
  if (call.operation == Operation::broadcast) return;
  const auto part = rank * call.count * static_cast<std::int64_t>(size_of(call.dtype));
  const auto* send = static_cast<const std::byte*>(call.send);
  const auto* recv = static_cast<const std::byte*>(call.recv);
  const bool in_place = call.operation == Operation::all_reduce   ? send == recv
                        : call.operation == Operation::all_gather ? send == recv + part
                                                                  : recv == send + part;
  SHOAL_CHECK(in_place || !overlap(send, call.send_bytes(size), recv, call.recv_bytes(size)),
              "{} of {} elements: send and recv overlap without being in place", name, call.count);
}

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return "sum";
    case ReduceOp::prod:
      return "prod";
    case ReduceOp::min:
      return "min";
    case ReduceOp::max:
      return "max";
    case ReduceOp::avg:
      return "avg";
    case ReduceOp::premultiplied_sum:
      return "premultiplied_sum";
  }
  return "?";
}

std::string_view to_string(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::all_gather:
      return "all_gather";
    case Operation::broadcast:
      return "broadcast";
    case Operation::reduce:
      return "reduce";
    case Operation::gather:
      return "gather";
    case Operation::scatter:
      return "scatter";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::reduce_scatter_v:
      return "reduce_scatter_v";
    case Operation::all_gather_v:
      return "all_gather_v";
    case Operation::all_to_all_v:
      return "all_to_all_v";
    case Operation::send:
      return "send";
    case Operation::recv:
      return "recv";
    case Operation::barrier:
      return "barrier";
  }
  return "?";
}

std::string describe(const Call& call) {
  return text_of(call.operation, call.count, call.dtype, call.op, call.root);
}

std::string describe(const Descriptor& d) {
  return text_of(d.operation, d.count, d.dtype, static_cast<ReduceOp>(d.reduce), d.root);
}

kernels::Reduce kernel_operation(ReduceOp op) {
  switch (op) {
    case ReduceOp::prod:
      return kernels::Reduce::prod;
    case ReduceOp::min:
      return kernels::Reduce::min;
    case ReduceOp::max:
      return kernels::Reduce::max;
    case ReduceOp::sum:
    case ReduceOp::avg:
    case ReduceOp::premultiplied_sum:
      return kernels::Reduce::sum;
  }
  SHOAL_ASSERT(false);
}

}  // namespace shoal::collectives
