#include "shoal/collectives/call.h"

#include <array>
#include <numeric>

#include <fmt/format.h>

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

std::int64_t elements(const Call& call, Extent extent, int rank, int size) {
  switch (extent) {
    case Extent::none:
      return 0;
    case Extent::count:
    case Extent::counts:
      return call.count;
    case Extent::ranks:
      return call.count * size;
    case Extent::own:
      return call.counts[static_cast<std::size_t>(rank)];
    case Extent::recv_counts:
      return sum_before(call.recv_counts, size);
  }
  SHOAL_ASSERT(false);
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
  const ReduceTraits& reduction = traits(call.op);
  SHOAL_CHECK(reduction.no_integers.empty() || is_floating(call.dtype), "{}: {} of {}; {}", name,
              reduction.name, to_string(call.dtype), reduction.no_integers);
}

// Whether send and recv are one buffer, or the smaller is this rank's part of the larger.
bool in_place(const Call& call, int rank) {
  const OperationTraits& is = traits(call.operation);
  if (is.recv == Extent::recv_counts) return false;
  if (is.send == is.recv) return is.send == Extent::count && call.send == call.recv;
  const std::int64_t before =
      has_counts(call.operation) ? sum_before(call.counts, rank) : rank * call.count;
  const auto part = before * static_cast<std::int64_t>(size_of(call.dtype));
  const auto* send = static_cast<const std::byte*>(call.send);
  const auto* recv = static_cast<const std::byte*>(call.recv);
  const bool gathers = is.recv == Extent::ranks || is.recv == Extent::counts;
  return gathers ? send == recv + part : recv == send + part;
}

// Accepts most calls in a few instructions: the full checks would take as long as a small
// operation.
bool plainly_right(const Call& call, int size, DeviceType device) {
  return call.operation == Operation::all_reduce && traits(call.op).no_integers.empty() &&
         call.send && call.send == call.recv && call.count >= 0 &&
         call.count <= kMostElements >> 16 && size <= 1 << 16 && call.stream.device.type == device;
}

}  // namespace

std::int64_t Call::send_bytes(int rank, int size) const {
  const OperationTraits& is = traits(operation);
  if (is.only_root_sends && rank != root) return 0;
  return elements(*this, is.send, rank, size) * static_cast<std::int64_t>(size_of(dtype));
}

std::int64_t Call::recv_bytes(int rank, int size) const {
  const OperationTraits& is = traits(operation);
  if (is.only_root_receives && rank != root) return 0;
  return elements(*this, is.recv, rank, size) * static_cast<std::int64_t>(size_of(dtype));
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
  const OperationTraits& is = traits(call.operation);
  if (is.recv == Extent::recv_counts) return 0;
  const bool of_ranks = is.send == Extent::ranks || is.recv == Extent::ranks;
  return (of_ranks ? size : 1) * call.count * static_cast<std::int64_t>(size_of(call.dtype));
}

namespace {

Signature own_signature(const Call& call) {
  Signature s;
  s.operation = call.operation;
  s.dtype = call.dtype;
  if (call.reduces()) s.reduce = call.op;
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
                        static_cast<std::int64_t>(own.reduce),
                        std::int64_t{own.root},
                        own.count,
                        static_cast<std::int64_t>(own.counts),
                        static_cast<std::int64_t>(outer.counts)};
  outer.counts = hash_counts(step);
  return outer;
}

std::string describe(const Call& call) { return describe(signature_of(call)); }

}  // namespace shoal::collectives
