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
  return mixed % 7 + (op == ReduceOp::min || op == ReduceOp::max ? 0 : index % 3);
}

// At most 8 * (1 + 2 + 3) * 3 over nine ranks, which is exact in bf16.
std::int64_t factor(int rank, ReduceOp op) {
  return op == ReduceOp::premultiplied_sum ? 1 + rank % 3 : 1;
}

double expected(int size, std::int64_t index, ReduceOp op) {
  std::int64_t value = factor(0, op) * input(0, index, op);
  for (int rank = 1; rank < size; ++rank) {
    const std::int64_t next = factor(rank, op) * input(rank, index, op);
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

// avg divides after the sum; all other results are exact.
double tolerance(const Case& c) {
  if (c.op != ReduceOp::avg || !reduces(c.operation)) return 0;
  if (c.dtype == DType::bf16) return 0x1p-8;
  return c.dtype == DType::f16 ? 0x1p-11 : c.dtype == DType::f32 ? 0x1p-22 : 0x1p-51;
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

// `count` elements between two guards. For device memory the test accesses a mirror.
class Elements {
 public:
  Elements(Communicator& communicator, const Case& c, std::int64_t count)
      : dtype_(c.dtype),
        element_(static_cast<std::int64_t>(size_of(c.dtype))),
        begin_(kGuardBytes + c.misalignment),
        end_(begin_ + count * element_),
        device_(communicator.memory_resource().device()),
        plain_(make_device_memory(device_)) {
    const bool symmetric = c.memory == Memory::symmetric ||
                           (c.memory == Memory::mixed && communicator.rank() % 2 == 0);
    const auto bytes = static_cast<std::size_t>(end_ + kGuardBytes);
    buffer_ =
        Buffer(symmetric ? communicator.memory_resource() : *plain_, bytes, MemoryTag::workspace);
    if (!device_.is_cpu()) mirror_.resize(bytes);
    std::memset(this->bytes(), kGuard, bytes);
  }
  void upload() { copy(buffer_.data(), mirror_.data()); }
  void download() { copy(mirror_.data(), buffer_.data()); }
  // The address of element `index` that the communicator gets.
  std::byte* place(std::int64_t index) const {
    return static_cast<std::byte*>(buffer_.data()) + begin_ + index * element_;
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
  std::int64_t fingerprint() const {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (std::int64_t i = begin_; i < end_; ++i)
      hash = (hash ^ static_cast<std::uint64_t>(bytes()[i])) * 0x100000001b3;
    return static_cast<std::int64_t>(hash);
  }

 private:
  static constexpr std::uint8_t kGuard = 0xA5;
  static constexpr std::int64_t kGuardBytes = 64;
  std::byte* bytes() const {
    return device_.is_cpu() ? static_cast<std::byte*>(buffer_.data())
                            : const_cast<std::byte*>(mirror_.data());
  }
  void copy(void* to, const void* from) const {
    if (device_.is_cpu()) return;
    device_backend(device_.type).copy(to, from, mirror_.size(), {device_, nullptr});
    device_backend(device_.type).synchronize({device_, nullptr});
  }
  DType dtype_;
  std::int64_t element_, begin_, end_;
  Device device_;
  std::unique_ptr<MemoryResource> plain_;
  std::vector<std::byte> mirror_;
  Buffer buffer_;
};

// Counts of a _v operation: unequal, some of them 0. The largest is c.count.
std::int64_t count_of(const Case& c, int number) {
  if (number % 5 == 3) return 0;
  return c.count - number % 3 * (c.count / 4);
}

// The number that determines the count from rank a to rank b in all_to_all_v.
int pair_number(int a, int b) { return 2 * a + b; }

// A range of a rank's send or recv buffer: `count` elements from `begin`. They equal the elements
// from source_begin on of rank `source`'s input, or of the reduction over all ranks if source is
// -1.
struct Part {
  std::int64_t begin, count;
  int source;
  std::int64_t source_begin;
};

// The operation as one rank sees it, defined without the library's own arithmetic.
struct Model {
  std::int64_t send = 0, recv = 0;  // elements
  std::vector<Part> results;        // the content of recv
  std::int64_t in_place_at = 0;     // where the smaller buffer lies in the larger one
};

std::int64_t sum_of_counts(const Case& c, int ranks) {
  std::int64_t sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += count_of(c, rank);
  return sum;
}

Model gathered(const Case& c, int rank, int size, bool here) {
  Model m;
  m.send = c.count;
  m.in_place_at = rank * c.count;
  if (here)
    for (int peer = 0; peer < size; ++peer) m.results.push_back({peer * c.count, c.count, peer, 0});
  return m;
}

Model unequal(const Case& c, int rank, int size) {
  Model m;
  m.in_place_at = sum_of_counts(c, rank);
  if (c.operation == Operation::reduce_scatter_v) {
    m.send = sum_of_counts(c, size);
    m.results = {{0, count_of(c, rank), -1, m.in_place_at}};
    return m;
  }
  if (c.operation == Operation::all_gather_v) {
    m.send = count_of(c, rank);
    for (int peer = 0; peer < size; ++peer)
      m.results.push_back({sum_of_counts(c, peer), count_of(c, peer), peer, 0});
    return m;
  }
  std::int64_t received = 0;
  for (int peer = 0; peer < size; ++peer) {
    m.send += count_of(c, pair_number(rank, peer));
    std::int64_t sent_before = 0;
    for (int other = 0; other < rank; ++other) sent_before += count_of(c, pair_number(peer, other));
    const std::int64_t count = count_of(c, pair_number(peer, rank));
    m.results.push_back({received, count, peer, sent_before});
    received += count;
  }
  return m;
}

Model model_of(const Case& c, int rank, int size) {
  Model m;
  m.send = c.count;
  const bool at_root = rank == c.root;
  switch (c.operation) {
    case Operation::all_reduce:
      m.results = {{0, c.count, -1, 0}};
      break;
    case Operation::reduce:
      if (at_root) m.results = {{0, c.count, -1, 0}};
      break;
    case Operation::broadcast:
      m.results = {{0, c.count, c.root, 0}};
      break;
    case Operation::reduce_scatter:
      m.send = c.count * size;
      m.in_place_at = rank * c.count;
      m.results = {{0, c.count, -1, m.in_place_at}};
      break;
    case Operation::all_gather:
      m = gathered(c, rank, size, true);
      break;
    case Operation::gather:
      m = gathered(c, rank, size, at_root);
      break;
    case Operation::scatter:
      m.send = at_root ? c.count * size : 0;
      m.in_place_at = rank * c.count;
      m.results = {{0, c.count, c.root, rank * c.count}};
      break;
    case Operation::all_to_all:
      m.send = c.count * size;
      for (int peer = 0; peer < size; ++peer)
        m.results.push_back({peer * c.count, c.count, peer, rank * c.count});
      break;
    case Operation::send:
      if (size > 1) m.results = {{0, c.count, (rank + size - 1) % size, 0}};
      break;
    default:
      m = unequal(c, rank, size);
  }
  for (const Part& part : m.results) m.recv = std::max(m.recv, part.begin + part.count);
  return m;
}

// True if the recv buffer is part of the send buffer.
bool scatters(Operation operation) {
  return operation == Operation::reduce_scatter || operation == Operation::reduce_scatter_v ||
         operation == Operation::scatter;
}

WorkPtr call_unequal(Communicator& communicator, const Case& c, const void* send, void* recv,
                     Reduction op) {
  std::vector<std::int64_t> counts, sent, received;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    counts.push_back(count_of(c, peer));
    sent.push_back(count_of(c, pair_number(communicator.rank(), peer)));
    received.push_back(count_of(c, pair_number(peer, communicator.rank())));
  }
  if (c.operation == Operation::reduce_scatter_v)
    return communicator.reduce_scatter_v(send, recv, counts, c.dtype, op);
  if (c.operation == Operation::all_gather_v)
    return communicator.all_gather_v(send, recv, counts, c.dtype);
  return communicator.all_to_all_v(send, sent, recv, received, c.dtype);
}

WorkPtr call(Communicator& communicator, const Case& c, const void* send, void* recv) {
  const int rank = communicator.rank(), size = communicator.size();
  const auto op = c.op == ReduceOp::premultiplied_sum
                      ? Reduction::premultiplied_sum(static_cast<double>(factor(rank, c.op)))
                      : Reduction(c.op);
  switch (c.operation) {
    case Operation::all_reduce:
      return communicator.all_reduce(send, recv, c.count, c.dtype, op);
    case Operation::reduce_scatter:
      return communicator.reduce_scatter(send, recv, c.count, c.dtype, op);
    case Operation::all_gather:
      return communicator.all_gather(send, recv, c.count, c.dtype);
    case Operation::broadcast:
      return communicator.broadcast(recv, c.count, c.dtype, c.root);
    case Operation::reduce:
      return communicator.reduce(send, recv, c.count, c.dtype, op, c.root);
    case Operation::gather:
      return communicator.gather(send, recv, c.count, c.dtype, c.root);
    case Operation::scatter:
      return communicator.scatter(send, recv, c.count, c.dtype, c.root);
    case Operation::all_to_all:
      return communicator.all_to_all(send, recv, c.count, c.dtype);
    case Operation::send:
      communicator.begin_group();
      if (size > 1) {
        communicator.send(send, c.count, c.dtype, (rank + 1) % size);
        communicator.recv(recv, c.count, c.dtype, (rank + size - 1) % size);
      }
      return communicator.end_group();
    default:
      return call_unequal(communicator, c, send, recv, op);
  }
}

// Returns 1 if the ranks' results differ.
std::int64_t differing(Communicator& communicator, std::int64_t fingerprint) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(communicator.size()));
  communicator.host().all_gather(&fingerprint, all.data(), 1, DType::i64)->wait();
  return std::ranges::count(all, fingerprint) == communicator.size() ? 0 : 1;
}

}  // namespace

std::string describe(const Case& c) {
  return fmt::format("{} of {} {} {}, {}, {} bytes off, {} memory, root {}", to_string(c.operation),
                     c.count, to_string(c.dtype), to_string(c.op),
                     c.in_place ? "in place" : "out of place", c.misalignment,
                     c.memory == Memory::plain       ? "plain"
                     : c.memory == Memory::symmetric ? "symmetric"
                                                     : "mixed",
                     c.root);
}

bool is_possible(const Case& c) {
  const bool always_out = c.operation == Operation::all_to_all ||
                          c.operation == Operation::all_to_all_v || c.operation == Operation::send;
  if (c.in_place && always_out) return false;
  if (c.operation == Operation::broadcast && !c.in_place) return false;
  if (!reduces(c.operation)) return c.op == ReduceOp::sum;
  const bool scaled = c.op == ReduceOp::avg || c.op == ReduceOp::premultiplied_sum;
  return !scaled || is_floating(c.dtype);
}

std::int64_t wrong_in(Communicator& communicator, const Case& c) {
  const int rank = communicator.rank(), size = communicator.size();
  const Model m = model_of(c, rank, size);
  const bool inside_send = scatters(c.operation) && m.send > 0;
  const bool rooted = c.operation == Operation::reduce || c.operation == Operation::gather ||
                      c.operation == Operation::scatter;
  const bool in_place = c.in_place && (!rooted || rank == c.root);
  // In place, the only buffer is the larger of the two.
  Elements send(communicator, c, in_place && !inside_send ? 0 : m.send);
  Elements recv(communicator, c, in_place && inside_send ? 0 : m.recv);
  const std::int64_t send_at = in_place && !inside_send ? m.in_place_at : 0;
  const std::int64_t recv_at = in_place && inside_send ? m.in_place_at : 0;
  Elements& from = in_place && !inside_send ? recv : send;
  Elements& to = in_place && inside_send ? send : recv;
  const auto own = [&](std::int64_t i) { return input(rank, i, c.op); };
  from.fill(send_at, m.send, own);
  send.upload();
  recv.upload();
  call(communicator, c, from.place(send_at), to.place(recv_at))->wait();
  send.download();
  recv.download();

  std::int64_t bad = send.damaged_guards() + recv.damaged_guards();
  for (const Part& part : m.results)
    bad += to.wrong(recv_at + part.begin, part.count, tolerance(c), [&](std::int64_t i) {
      return part.source < 0 ? expected(size, part.source_begin + i, c.op)
                             : static_cast<double>(input(part.source, part.source_begin + i, c.op));
    });
  if (!in_place) bad += send.wrong(0, m.send, 0, own);
  if (c.operation == Operation::all_reduce) bad += differing(communicator, to.fingerprint());
  return bad;
}

std::string check(Communicator& communicator, const Case& c) {
  const std::int64_t bad = wrong_in(communicator, c);
  if (bad == 0) return {};
  return fmt::format("rank {} of {}: {}: {} wrong", communicator.rank(), communicator.size(),
                     describe(c), bad);
}

std::vector<std::string> check_everything(Communicator& communicator,
                                          const std::vector<std::int64_t>& counts) {
  std::vector<std::string> wrong;
  int variant = 0;
  for (const std::int64_t count : counts)
    for (const Operation operation : kOperations)
      for (const DType dtype : kDTypes)
        for (const ReduceOp op : kOps) {
          ++variant;
          Case c{operation, dtype, op, count};
          c.in_place = operation == Operation::broadcast || variant % 2 == 0;
          c.misalignment = variant % 5 == 0 ? static_cast<int>(size_of(dtype)) : 0;
          c.memory = static_cast<Memory>(variant % 3);
          c.root = variant % communicator.size();
          if (!is_possible(c)) c.in_place = !c.in_place;
          if (!is_possible(c)) continue;
          if (std::string line = check(communicator, c); !line.empty())
            wrong.push_back(std::move(line));
        }
  communicator.barrier()->wait();
  return wrong;
}

}  // namespace shoal::collectives::test
