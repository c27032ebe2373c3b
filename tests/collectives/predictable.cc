#include "predictable.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

namespace shoal::collectives::test {
namespace {

std::int64_t input(int rank, std::int64_t index, ReduceOp op) {
  const std::int64_t mixed = rank + index;
  if (op == ReduceOp::prod) return mixed % 3 == 0 ? 2 : 1;  // at most 8 over nine ranks
  return mixed % 7 + (op == ReduceOp::sum || op == ReduceOp::avg ? index % 3 : 0);
}

double expected(int size, std::int64_t index, ReduceOp op) {
  std::int64_t value = input(0, index, op);
  for (int rank = 1; rank < size; ++rank) {
    const std::int64_t next = input(rank, index, op);
    if (op == ReduceOp::prod)
      value *= next;
    else if (op == ReduceOp::min)
      value = std::min(value, next);
    else if (op == ReduceOp::max)
      value = std::max(value, next);
    else
      value += next;
  }
  const auto exact = static_cast<double>(value);
  return op == ReduceOp::avg ? exact / size : exact;
}

// avg divides after the sum; everything else is exact.
double tolerance(const Case& c) {
  if (c.op != ReduceOp::avg) return 0;
  if (c.dtype == DType::bf16) return 0x1p-7;
  return c.dtype == DType::f16 ? 0x1p-10 : c.dtype == DType::f32 ? 0x1p-22 : 0x1p-51;
}

template <typename Visit>
auto with_type(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::f32:
      return visit(float{});
    case DType::bf16:
      return visit(bfloat16{});
    case DType::f16:
      return visit(float16{});
    case DType::f64:
      return visit(double{});
    case DType::i64:
      return visit(std::int64_t{});
    case DType::i32:
      return visit(std::int32_t{});
    case DType::u8:
      return visit(std::uint8_t{});
    case DType::i8:
      break;
  }
  return visit(std::int8_t{});
}

template <typename T>
constexpr bool is_half = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

void put(std::byte* to, DType dtype, double value) {
  with_type(dtype, [&]<typename T>(T v) {
    if constexpr (is_half<T>)
      v = T(static_cast<float>(value));
    else
      v = static_cast<T>(value);
    std::memcpy(to, &v, sizeof v);
  });
}

double get(const std::byte* from, DType dtype) {
  return with_type(dtype, [&]<typename T>(T v) {
    std::memcpy(&v, from, sizeof v);
    if constexpr (is_half<T>)
      return static_cast<double>(static_cast<float>(v));
    else
      return static_cast<double>(v);
  });
}

// `count` elements between two guards.
class Elements {
 public:
  Elements(Communicator& communicator, const Case& c, std::int64_t count)
      : dtype_(c.dtype),
        element_(static_cast<std::int64_t>(size_of(c.dtype))),
        begin_(kGuardBytes + c.misalignment * element_),
        end_(begin_ + count * element_),
        host_(make_host_memory()) {
    const bool symmetric = c.memory == Memory::symmetric ||
                           (c.memory == Memory::mixed && communicator.rank() % 2 == 0);
    const auto bytes = static_cast<std::size_t>(end_ + kGuardBytes);
    buffer_ =
        Buffer(symmetric ? communicator.memory_resource() : *host_, bytes, MemoryTag::workspace);
    std::memset(buffer_.data(), kGuard, bytes);
  }
  std::byte* at(std::int64_t index) const { return bytes() + begin_ + index * element_; }
  template <typename F>
  void fill(std::int64_t from, std::int64_t count, F&& value) {
    for (std::int64_t i = 0; i < count; ++i)
      put(at(from + i), dtype_, static_cast<double>(value(i)));
  }
  template <typename F>
  std::int64_t wrong(std::int64_t from, std::int64_t count, double tolerance, F&& value) const {
    std::int64_t bad = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double want = static_cast<double>(value(i)), have = get(at(from + i), dtype_);
      bad += !(std::abs(have - want) <= tolerance * std::abs(want));
    }
    return bad;
  }
  std::int64_t damaged_guards() const {
    std::int64_t bad = 0;
    for (std::int64_t i = 0; i < begin_; ++i) bad += bytes()[i] != std::byte{kGuard};
    for (std::int64_t i = 0; i < kGuardBytes; ++i) bad += bytes()[end_ + i] != std::byte{kGuard};
    return bad;
  }

 private:
  static constexpr std::uint8_t kGuard = 0xA5;
  static constexpr std::int64_t kGuardBytes = 64;
  std::byte* bytes() const { return static_cast<std::byte*>(buffer_.data()); }
  DType dtype_;
  std::int64_t element_, begin_, end_;
  std::unique_ptr<MemoryResource> host_;
  Buffer buffer_;
};

}  // namespace

std::string describe(const Case& c) {
  return fmt::format("{} {} count {} {} offset {} {}", to_string(c.dtype), to_string(c.op), c.count,
                     c.in_place ? "in place" : "out of place", c.misalignment,
                     c.memory == Memory::plain       ? "plain"
                     : c.memory == Memory::symmetric ? "symmetric"
                                                     : "mixed");
}

std::int64_t wrong_in_all_reduce(Communicator& communicator, const Case& c) {
  Elements recv(communicator, c, c.count);
  Elements other(communicator, c, c.in_place ? 0 : c.count);
  Elements& send = c.in_place ? recv : other;
  const auto own = [&](std::int64_t i) { return input(communicator.rank(), i, c.op); };
  send.fill(0, c.count, own);
  communicator.all_reduce(send.at(0), recv.at(0), c.count, c.dtype, c.op)->wait();
  std::int64_t bad = recv.wrong(0, c.count, tolerance(c), [&](std::int64_t i) {
    return expected(communicator.size(), i, c.op);
  });
  if (!c.in_place) bad += send.wrong(0, c.count, 0, own);
  return bad + recv.damaged_guards();
}

std::int64_t wrong_in_reduce_scatter(Communicator& communicator, const Case& c) {
  const std::int64_t total = c.count * communicator.size(), begin = c.count * communicator.rank();
  Elements send(communicator, c, total);
  Elements recv(communicator, c, c.in_place ? 0 : c.count);
  send.fill(0, total, [&](std::int64_t i) { return input(communicator.rank(), i, c.op); });
  std::byte* const to = c.in_place ? send.at(begin) : recv.at(0);
  communicator.reduce_scatter(send.at(0), to, c.count, c.dtype, c.op)->wait();
  const auto want = [&](std::int64_t i) { return expected(communicator.size(), begin + i, c.op); };
  return c.in_place ? send.wrong(begin, c.count, tolerance(c), want) + send.damaged_guards()
                    : recv.wrong(0, c.count, tolerance(c), want) + recv.damaged_guards();
}

std::int64_t wrong_in_all_gather(Communicator& communicator, const Case& c) {
  const std::int64_t begin = c.count * communicator.rank();
  Elements recv(communicator, c, c.count * communicator.size());
  Elements send(communicator, c, c.in_place ? 0 : c.count);
  (c.in_place ? recv : send).fill(c.in_place ? begin : 0, c.count, [&](std::int64_t i) {
    return input(communicator.rank(), i, c.op);
  });
  const std::byte* from = c.in_place ? recv.at(begin) : send.at(0);
  communicator.all_gather(from, recv.at(0), c.count, c.dtype)->wait();
  std::int64_t bad = recv.damaged_guards();
  for (int rank = 0; rank < communicator.size(); ++rank)
    bad += recv.wrong(c.count * rank, c.count, 0,
                      [&](std::int64_t i) { return input(rank, i, c.op); });
  return bad;
}

std::int64_t wrong_in_broadcast(Communicator& communicator, const Case& c, int root) {
  Elements data(communicator, c, c.count);
  data.fill(0, c.count, [&](std::int64_t i) { return input(communicator.rank(), i, c.op); });
  communicator.broadcast(data.at(0), c.count, c.dtype, root)->wait();
  return data.wrong(0, c.count, 0, [&](std::int64_t i) { return input(root, i, c.op); }) +
         data.damaged_guards();
}

std::vector<std::string> check_everything(Communicator& communicator,
                                          const std::vector<std::int64_t>& counts) {
  std::vector<std::string> wrong;
  const auto note = [&](std::string_view what, const Case& c, std::int64_t bad) {
    if (bad > 0)
      wrong.push_back(fmt::format("rank {} of {}: {} {}: {} wrong", communicator.rank(),
                                  communicator.size(), what, describe(c), bad));
  };
  int variant = 0;
  for (const std::int64_t count : counts)
    for (const DType dtype : kDTypes)
      for (const ReduceOp op : kOps) {
        if (op == ReduceOp::avg && !is_floating(dtype)) continue;
        // Place and alignment by turns: over all dtypes and operations each combination comes up
        // many times.
        for (const Memory memory : {Memory::plain, Memory::symmetric, Memory::mixed}) {
          ++variant;
          const Case c{dtype, op, count, variant % 2 == 0, variant % 5 == 0 ? 1 : 0, memory};
          note("all_reduce", c, wrong_in_all_reduce(communicator, c));
          note("reduce_scatter", c, wrong_in_reduce_scatter(communicator, c));
          if (op != ReduceOp::sum && op != ReduceOp::max) continue;  // nothing is reduced below
          note("all_gather", c, wrong_in_all_gather(communicator, c));
          note("broadcast", c, wrong_in_broadcast(communicator, c, variant % communicator.size()));
        }
      }
  communicator.barrier()->wait();
  return wrong;
}

}  // namespace shoal::collectives::test
