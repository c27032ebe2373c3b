#include "measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "shoal/collectives/call.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/verifiable/verifiable.h"
#include "shoal/runtime/base/clock.h"

namespace shoal::perf {
namespace {

using collectives::Operation;
using collectives::ReduceOp;
using collectives::Reduction;
using collectives::Verifiable;

// Number of `count`-sized parts in a call's larger buffer.
int parts(Operation operation, int ranks) {
  const collectives::OperationTraits& is = collectives::traits(operation);
  const auto all = collectives::Extent::ranks;
  return is.send == all || is.recv == all ? ranks : 1;
}

Verifiable inputs(const Options& options, int ranks) {
  return {options.dtype, options.op, ranks, 1};
}

}  // namespace

double bus_factor(Operation operation, int ranks) {
  const double n = ranks;
  switch (operation) {
    case Operation::all_reduce:
      return 2 * (n - 1) / n;
    case Operation::reduce_scatter:
    case Operation::all_gather:
    case Operation::gather:
    case Operation::scatter:
    case Operation::all_to_all:
      return (n - 1) / n;
    default:
      return 1;
  }
}

double host_factor(Operation operation, int nodes) {
  const double n = nodes;
  switch (operation) {
    case Operation::all_reduce:
      return 2 * (n - 1) / n;
    case Operation::reduce_scatter:
    case Operation::all_gather:
    case Operation::gather:
    case Operation::scatter:
      return (n - 1) / n;
    case Operation::broadcast:
    case Operation::reduce:
      return nodes > 1 ? 1 : 0;
    default:
      return 0;
  }
}

Mirrored::Mirrored(MemoryResource& memory, MemoryResource& host, std::size_t bytes, Stream stream)
    : stream_(stream), memory_(memory, bytes, MemoryTag::communication) {
  if (!memory.device().is_cpu()) mirror_ = Buffer(host, bytes, MemoryTag::communication);
  zero();  // touches the pages before anything is timed
}

void Mirrored::upload() const {
  if (!mirror_) return;
  auto& backend = device_backend(stream_.device.type);
  backend.copy(memory_.data(), mirror_.data(), memory_.size(), stream_);
  backend.synchronize(stream_);
}

void Mirrored::download() const {
  if (!mirror_) return;
  auto& backend = device_backend(stream_.device.type);
  backend.copy(mirror_.data(), memory_.data(), memory_.size(), stream_);
  backend.synchronize(stream_);
}

void Mirrored::zero() const {
  std::memset(host(), 0, memory_.size());
  upload();
}

Bench::Bench(const Options& options, collectives::Communicator& communicator)
    : options_(options),
      communicator_(communicator),
      stream_{communicator.memory_resource().device(), nullptr},
      host_(make_host_memory()) {
  std::int64_t largest = options.sizes.empty() ? options.max_bytes : 0;
  for (const std::int64_t size : options.sizes) largest = std::max(largest, size);
  if (!stream_.device.is_cpu()) device_ = make_device_memory(stream_.device);
  MemoryResource& memory = options.memory == Memory::symmetric ? communicator.memory_resource()
                           : device_                           ? *device_
                                                               : *host_;
  const auto bytes = static_cast<std::size_t>(largest + 64);
  a_ = Mirrored(memory, *host_, bytes, stream_);
  b_ = Mirrored(memory, *host_, bytes, stream_);
  word_ = Mirrored(device_ ? *device_ : *host_, *host_, sizeof(double), stream_);
}

Bench::Call Bench::prepare(std::int64_t count, bool in_place) const {
  const int rank = communicator_.rank(), ranks = communicator_.size();
  const auto element = static_cast<std::int64_t>(size_of(options_.dtype));
  const Mirrored& to = in_place ? a_ : b_;
  const std::int64_t whole = count * parts(options_.operation, ranks);
  const std::int64_t part = rank * count * element;
  const Verifiable pattern = inputs(options_, ranks);
  Call call{a_.data(), to.data(), count, in_place};
  std::memset(to.host(), 0x5a, static_cast<std::size_t>(whole * element));
  switch (options_.operation) {
    case Operation::all_gather:
    case Operation::gather:
      if (in_place) call.send += part;
      pattern.fill(rank, 0, count, a_.host() + (in_place ? part : 0));
      break;
    case Operation::reduce_scatter:
    case Operation::scatter:
      if (in_place && (options_.operation != Operation::scatter || rank == options_.root))
        call.recv += part;
      pattern.fill(rank, 0, whole, a_.host());
      break;
    case Operation::broadcast:
      call.recv = a_.data();
      if (rank == options_.root) pattern.fill(rank, 0, count, a_.host());
      break;
    default:
      pattern.fill(rank, 0, whole, a_.host());
  }
  a_.upload();
  b_.upload();
  return call;
}

collectives::WorkPtr Bench::start(const Call& call) const {
  auto& c = communicator_;
  const Reduction op =
      options_.op == ReduceOp::premultiplied_sum
          ? Reduction::premultiplied_sum(inputs(options_, c.size()).factor(c.rank()))
          : Reduction(options_.op);
  const DType dtype = options_.dtype;
  switch (options_.operation) {
    case Operation::all_reduce:
      return c.all_reduce(call.send, call.recv, call.count, dtype, op, stream_);
    case Operation::reduce_scatter:
      return c.reduce_scatter(call.send, call.recv, call.count, dtype, op, stream_);
    case Operation::all_gather:
      return c.all_gather(call.send, call.recv, call.count, dtype, stream_);
    case Operation::broadcast:
      return c.broadcast(call.recv, call.count, dtype, options_.root, stream_);
    case Operation::reduce:
      return c.reduce(call.send, call.recv, call.count, dtype, op, options_.root, stream_);
    case Operation::gather:
      return c.gather(call.send, call.recv, call.count, dtype, options_.root, stream_);
    case Operation::scatter:
      return c.scatter(call.send, call.recv, call.count, dtype, options_.root, stream_);
    case Operation::all_to_all:
      return c.all_to_all(call.send, call.recv, call.count, dtype, stream_);
    case Operation::send:
      c.begin_group();
      c.send(call.send, call.count, dtype, (c.rank() + 1) % c.size(), stream_);
      c.recv(call.recv, call.count, dtype, (c.rank() + c.size() - 1) % c.size(), stream_);
      return c.end_group();
    default:
      return c.barrier(stream_);
  }
}

std::int64_t Bench::wrong(const Call& call) const {
  const int rank = communicator_.rank(), ranks = communicator_.size();
  const auto element = static_cast<std::int64_t>(size_of(options_.dtype));
  const Verifiable pattern = inputs(options_, ranks);
  const bool at_root = rank == options_.root;
  const Mirrored& to = call.in_place || options_.operation == Operation::broadcast ? a_ : b_;
  to.download();
  const std::byte* received = to.host() + (call.recv - to.data());
  std::int64_t wrong = 0;
  const auto parts_of_all = [&](std::int64_t first) {
    for (int peer = 0; peer < ranks; ++peer)
      wrong +=
          pattern.wrong_copied(peer, first, call.count, received + peer * call.count * element);
    return wrong;
  };
  switch (options_.operation) {
    case Operation::all_reduce:
      return pattern.wrong_reduced(0, call.count, received);
    case Operation::reduce_scatter:
      return pattern.wrong_reduced(rank * call.count, call.count, received);
    case Operation::reduce:
      return at_root ? pattern.wrong_reduced(0, call.count, received) : 0;
    case Operation::all_gather:
      return parts_of_all(0);
    case Operation::gather:
      return at_root ? parts_of_all(0) : 0;
    case Operation::all_to_all:
      return parts_of_all(rank * call.count);
    case Operation::scatter:
      return pattern.wrong_copied(options_.root, rank * call.count, call.count, received);
    case Operation::broadcast:
      return pattern.wrong_copied(options_.root, 0, call.count, received);
    case Operation::send:
      return pattern.wrong_copied((rank + ranks - 1) % ranks, 0, call.count, received);
    default:
      return 0;
  }
}

constexpr double kWarmUpSeconds = 0.05;

double Bench::agree(double value, ReduceOp op) const {
  std::memcpy(word_.host(), &value, sizeof value);
  word_.upload();
  communicator_.all_reduce(word_.data(), word_.data(), 1, DType::f64, op, stream_)->wait();
  word_.download();
  std::memcpy(&value, word_.host(), sizeof value);
  return value;
}

std::int64_t Bench::iterations(double seconds) const {
  if (options_.iterations > 0) return options_.iterations;
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(0.2 / seconds), 3, 20000);
}

Timing Bench::time(std::int64_t count, bool in_place) const {
  Call call = prepare(count, in_place);
  start(call)->wait();
  Timing timing;
  timing.wrong =
      options_.check
          ? static_cast<std::int64_t>(agree(static_cast<double>(wrong(call)), ReduceOp::sum))
          : -1;
  // Repeated sums would grow without bound, and denormal or infinite numbers are slow.
  a_.zero();
  b_.zero();
  const auto bytes = count * static_cast<std::int64_t>(size_of(options_.dtype));
  const std::int64_t warm_up = options_.warm_up >= 0 ? options_.warm_up
                               : bytes < (1 << 20)   ? 20
                                                     : 2;
  const auto timed = [&](std::int64_t times) {
    communicator_.barrier(stream_)->wait();
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < times; ++i) start(call)->wait();
    const double seconds = seconds_since(begin) / static_cast<double>(times);
    const collectives::CommunicatorStatistics statistics = communicator_.statistics();
    timing.algorithm =
        options_.operation == Operation::send ? "message" : std::string(statistics.algorithm);
    timing.why = statistics.why;
    return agree(seconds, ReduceOp::sum) / communicator_.size();
  };
  // Ranks that have just started may share a core until the kernel moves them. By default, the
  // warm-up therefore has a minimum duration.
  double once = timed(std::max<std::int64_t>(1, warm_up)), warm = 0;
  while (options_.warm_up < 0 && (warm += once * static_cast<double>(warm_up)) < kWarmUpSeconds)
    once = timed(warm_up);
  timing.iterations = iterations(once);
  timing.mean = timed(timing.iterations);

  std::vector<double> calls(
      static_cast<std::size_t>(std::min<std::int64_t>(timing.iterations, 2000)));
  communicator_.barrier(stream_)->wait();
  for (double& seconds : calls) {
    const auto begin = Clock::now();
    start(call)->wait();
    seconds = seconds_since(begin);
  }
  std::sort(calls.begin(), calls.end());
  const auto at = [&](double p) {
    const auto place = static_cast<std::size_t>(std::ceil(p * static_cast<double>(calls.size())));
    return agree(calls[std::max<std::size_t>(place, 1) - 1], ReduceOp::max);
  };
  timing.minimum = agree(calls.front(), ReduceOp::max);
  timing.p50 = at(0.5);
  timing.p99 = at(0.99);
  return timing;
}

Result Bench::run(std::int64_t bytes) {
  const auto element = static_cast<std::int64_t>(size_of(options_.dtype));
  const int split = parts(options_.operation, communicator_.size());
  Result result;
  result.count = options_.operation == Operation::barrier ? 0 : bytes / element / split;
  result.bytes = result.count * element * split;
  const Places places = places_of(options_.operation);
  if (options_.out_of_place && places.out) result.out_of_place = time(result.count, false);
  if (options_.in_place && places.in) result.in_place = time(result.count, true);
  return result;
}

}  // namespace shoal::perf
