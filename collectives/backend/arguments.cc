#include "shoal/collectives/backend/arguments.h"

#include <array>
#include <numeric>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

constexpr std::int64_t kMostElements = std::int64_t{1} << 46;

bool overlap(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + static_cast<std::uintptr_t>(b_bytes) &&
         y < x + static_cast<std::uintptr_t>(a_bytes);
}

std::int64_t sum_before(const std::vector<std::int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

// Number of elements in a rank's whole send and recv buffers.
std::int64_t sent(const Call& call, int rank, int size) {
  switch (call.operation) {
    case Operation::reduce_scatter:
    case Operation::all_to_all:
      return call.count * size;
    case Operation::scatter:
      return rank == call.root ? call.count * size : 0;
    case Operation::all_gather_v:
      return call.counts[static_cast<std::size_t>(rank)];
    case Operation::recv:
      return 0;
    default:
      return call.count;
  }
}

std::int64_t received(const Call& call, int rank, int size) {
  switch (call.operation) {
    case Operation::all_gather:
    case Operation::all_to_all:
    case Operation::split:
      return call.count * size;
    case Operation::gather:
      return rank == call.root ? call.count * size : 0;
    case Operation::reduce:
      return rank == call.root ? call.count : 0;
    case Operation::reduce_scatter_v:
      return call.counts[static_cast<std::size_t>(rank)];
    case Operation::all_to_all_v:
      return sum_before(call.recv_counts, size);
    case Operation::send:
      return 0;
    default:
      return call.count;
  }
}

void check_counts(const char* what, const std::vector<std::int64_t>& counts, int size,
                  std::string_view name) {
  SHOAL_CHECK(counts.size() == static_cast<std::size_t>(size), "{}: {} {}counts for a group of {}",
              name, counts.size(), what, size);
  std::int64_t sum = 0;
  for (int rank = 0; rank < size; ++rank) {
    const std::int64_t count = counts[static_cast<std::size_t>(rank)];
    SHOAL_CHECK(count >= 0 && count <= kMostElements - sum, "{}: {}count {} of rank {}", name, what,
                count, rank);
    sum += count;
  }
}

void check_numbers(const Call& call, int rank, int size) {
  const std::string_view name = to_string(call.operation);
  if (has_counts(call.operation)) check_counts("", call.counts, size, name);
  if (call.operation == Operation::all_to_all_v)
    check_counts("receive ", call.recv_counts, size, name);
  SHOAL_CHECK(call.count >= 0, "{}: count {}", name, call.count);
  SHOAL_CHECK(call.count <= kMostElements / size, "{}: count {} is out of range", name, call.count);
  const bool meant = has_root(call.operation) || is_message(call.operation);
  if (meant && (call.root < 0 || call.root >= size))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} {} in a group of {}", name,
                            is_message(call.operation) ? "rank" : "root", call.root, size),
                fmt::format("use 0 to {}; ranks are those of the group", size - 1));
  if (is_message(call.operation)) {
    SHOAL_CHECK(call.root != rank, "{}: rank {} to itself", name, rank);
  }
  if (!call.reduces()) return;
  SHOAL_CHECK(call.op != ReduceOp::avg || is_floating(call.dtype),
              "{}: avg of {}; take the sum and divide as you need", name, to_string(call.dtype));
  SHOAL_CHECK(call.op != ReduceOp::premultiplied_sum || is_floating(call.dtype),
              "{}: premultiplied_sum of {}; only floating dtypes can be scaled", name,
              to_string(call.dtype));
}

bool in_place(const Call& call, int rank) {
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  const auto* send = static_cast<const std::byte*>(call.send);
  const auto* recv = static_cast<const std::byte*>(call.recv);
  switch (call.operation) {
    case Operation::all_reduce:
    case Operation::broadcast:
    case Operation::reduce:
      return send == recv;
    case Operation::all_gather:
    case Operation::gather:
      return send == recv + rank * call.count * element;
    case Operation::reduce_scatter:
    case Operation::scatter:
      return recv == send + rank * call.count * element;
    case Operation::all_gather_v:
      return send == recv + sum_before(call.counts, rank) * element;
    case Operation::reduce_scatter_v:
      return recv == send + sum_before(call.counts, rank) * element;
    default:
      return false;
  }
}

// A few instructions that accept most calls: the full checks would take as long as a small
// operation.
bool plainly_right(const Call& call, int size, DeviceType device) {
  return call.operation == Operation::all_reduce && call.op < ReduceOp::avg && call.send &&
         call.send == call.recv && call.count >= 0 && call.count <= kMostElements >> 16 &&
         size <= 1 << 16 && call.stream.device.type == device;
}

}  // namespace

std::int64_t Call::send_bytes(int rank, int size) const {
  return sent(*this, rank, size) * static_cast<std::int64_t>(size_of(dtype));
}

std::int64_t Call::recv_bytes(int rank, int size) const {
  return received(*this, rank, size) * static_cast<std::int64_t>(size_of(dtype));
}

void check_call(const Call& call, int rank, int size, DeviceType device) {
  if (plainly_right(call, size, device)) return;
  const std::string_view name = to_string(call.operation);
  SHOAL_CHECK(call.stream.device.type == device || call.operation == Operation::barrier,
              "{}: this backend moves {} memory, the stream is on {}", name,
              device == DeviceType::cpu ? "host" : "device", shoal::to_string(call.stream.device));
  check_numbers(call, rank, size);
  if (call.operation == Operation::barrier) return;
  const std::int64_t send_bytes = call.send_bytes(rank, size);
  const std::int64_t recv_bytes = call.recv_bytes(rank, size);
  const auto present = [&](const char* which, const void* pointer, std::int64_t bytes) {
    if (bytes > 0 && !pointer)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} of {} elements: {} is a null pointer", name, call.count, which),
                  fmt::format("pass a buffer of {} B", bytes));
  };
  present("send", call.send, send_bytes);
  present("recv", call.recv, recv_bytes);
  if (send_bytes == 0 || recv_bytes == 0) return;
  SHOAL_CHECK(in_place(call, rank) || !overlap(call.send, send_bytes, call.recv, recv_bytes),
              "{} of {} elements: send and recv overlap without being in place", name, call.count);
}

std::int64_t table_bytes(const Call& call, int size) {
  const auto whole = call.count * static_cast<std::int64_t>(size_of(call.dtype));
  switch (call.operation) {
    case Operation::reduce_scatter:
    case Operation::all_gather:
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_to_all:
    case Operation::split:
      return size * whole;
    case Operation::all_to_all_v:
      return 0;
    default:
      return whole;
  }
}

std::string_view to_string(ReduceOp op) { return reduce_name(static_cast<std::uint8_t>(op)); }

namespace {

Signature own_signature(const Call& call) {
  Signature s;
  s.operation = call.operation;
  s.dtype = call.dtype;
  if (call.reduces()) s.reduce = static_cast<std::uint8_t>(call.op);
  s.root = call.root;
  if (call.operation != Operation::all_to_all_v) {
    s.count = call.count;
    s.counts = call.counts.empty() ? 0 : hash_counts(call.counts);
  }
  return s;
}

}  // namespace

Signature signature_of(const Call& call) {
  const Signature own = own_signature(call);
  if (!call.outer) return own;
  Signature outer = call.outer->signature;
  const std::array step{static_cast<std::int64_t>(own.operation),
                        static_cast<std::int64_t>(own.dtype),
                        std::int64_t{own.reduce},
                        std::int64_t{own.root},
                        own.count,
                        static_cast<std::int64_t>(own.counts),
                        static_cast<std::int64_t>(outer.counts)};
  outer.counts = hash_counts(step);
  return outer;
}

std::string describe(const Call& call) { return describe(signature_of(call)); }

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
