#include "measure.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
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

Verifiable inputs(const Case& what, int ranks, std::int64_t seed) {
  return {what.dtype, what.op, ranks, seed};
}

bool has_barrier(Blocking blocking) {
  return blocking == Blocking::every_call_and_barrier || blocking == Blocking::every_iteration;
}

// Calls of which each one's time is kept.
constexpr std::int64_t kMostCallsKept = 2000;
// Calls that a rank starts without waiting for the first of them.
constexpr std::size_t kMostInFlight = 1024;

}  // namespace

Spread spread_of(const std::vector<double>& calls, std::int64_t skip) {
  std::vector<double> sorted(calls.begin() + std::min<std::int64_t>(skip, std::ssize(calls) - 1),
                             calls.end());
  std::ranges::sort(sorted);
  const std::size_t n = sorted.size();
  const auto percentile = [&](std::size_t p) {
    return sorted[std::min(n - 1, std::max<std::size_t>((n * p + 99) / 100, 1) - 1)];
  };
  Spread spread{.minimum = sorted.front(), .maximum = sorted.back(), .p50 = sorted[n / 2]};
  spread.p95 = percentile(95);
  spread.p99 = percentile(99);
  for (const double seconds : sorted) spread.mean += seconds / static_cast<double>(n);
  for (const double seconds : sorted)
    spread.deviation += std::pow(seconds - spread.mean, 2) / static_cast<double>(n);
  spread.deviation = std::sqrt(spread.deviation);
  return spread;
}

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
  std::memset(host() - begin_, 0, memory_.size());
  upload();
}

Bench::Bench(const Options& options, std::int64_t largest, collectives::Communicator& communicator)
    : options_(options),
      largest_(largest),
      communicator_(communicator),
      stream_{communicator.memory_resource().device(), nullptr},
      host_(make_host_memory()) {
  if (!stream_.device.is_cpu()) device_ = make_device_memory(stream_.device);
  MemoryResource& memory = options.memory == Memory::symmetric ? communicator.memory_resource()
                           : device_                           ? *device_
                                                               : *host_;
  const auto bytes =
      static_cast<std::size_t>(largest + options.unalign * std::int64_t{sizeof(double)} + 64);
  a_ = Mirrored(memory, *host_, bytes, stream_);
  b_ = Mirrored(memory, *host_, bytes, stream_);
  words_ = Mirrored(device_ ? *device_ : *host_, *host_, kMostCallsKept * sizeof(double), stream_);
  if (options.memory == Memory::registered)
    for (const Mirrored* each : {&a_, &b_})
      registrations_.push_back(
          communicator.register_buffer(each->data(), static_cast<std::int64_t>(bytes)));
}

std::int64_t Bench::whole_bytes(std::int64_t count) const {
  return count * parts(options_.operation, communicator_.size()) *
         static_cast<std::int64_t>(size_of(case_.dtype));
}

Bench::Call Bench::prepare(std::int64_t count, bool in_place, std::int64_t seed) const {
  const int rank = communicator_.rank(), ranks = communicator_.size();
  const auto element = static_cast<std::int64_t>(size_of(case_.dtype));
  const Mirrored& to = in_place ? a_ : b_;
  const std::int64_t whole = count * parts(options_.operation, ranks);
  const std::int64_t part = rank * count * element;
  const Verifiable pattern = inputs(case_, ranks, seed);
  Call call{a_.data(), to.data(), count, in_place, seed};
  std::memset(to.host(), 0x5a, static_cast<std::size_t>(whole * element));
  switch (options_.operation) {
    case Operation::all_gather:
    case Operation::gather:
      if (in_place) call.send += part;
      pattern.fill(rank, 0, count, a_.host() + (in_place ? part : 0));
      break;
    case Operation::reduce_scatter:
    case Operation::scatter:
      if (in_place && (options_.operation != Operation::scatter || rank == case_.root))
        call.recv += part;
      pattern.fill(rank, 0, whole, a_.host());
      break;
    case Operation::broadcast:
      if (rank == case_.root) pattern.fill(rank, 0, count, a_.host());
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
      case_.op == ReduceOp::premultiplied_sum
          ? Reduction::premultiplied_sum(inputs(case_, c.size(), call.seed).factor(c.rank()))
          : Reduction(case_.op);
  const DType dtype = case_.dtype;
  switch (options_.operation) {
    case Operation::all_reduce:
      return c.all_reduce(call.send, call.recv, call.count, dtype, op, stream_);
    case Operation::reduce_scatter:
      return c.reduce_scatter(call.send, call.recv, call.count, dtype, op, stream_);
    case Operation::all_gather:
      return c.all_gather(call.send, call.recv, call.count, dtype, stream_);
    case Operation::broadcast:
      // Communicators broadcast in place: out of place, the root copies first.
      if (!call.in_place && c.rank() == case_.root)
        device_backend(stream_.device.type)
            .copy(call.recv, call.send, static_cast<std::size_t>(whole_bytes(call.count)), stream_);
      return c.broadcast(call.recv, call.count, dtype, case_.root, stream_);
    case Operation::reduce:
      return c.reduce(call.send, call.recv, call.count, dtype, op, case_.root, stream_);
    case Operation::gather:
      return c.gather(call.send, call.recv, call.count, dtype, case_.root, stream_);
    case Operation::scatter:
      return c.scatter(call.send, call.recv, call.count, dtype, case_.root, stream_);
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
  const auto element = static_cast<std::int64_t>(size_of(case_.dtype));
  const Verifiable pattern = inputs(case_, ranks, call.seed);
  const bool at_root = rank == case_.root;
  const Mirrored& to = call.in_place ? a_ : b_;
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
      return pattern.wrong_copied(case_.root, rank * call.count, call.count, received);
    case Operation::broadcast:
      return pattern.wrong_copied(case_.root, 0, call.count, received);
    case Operation::send:
      return pattern.wrong_copied((rank + ranks - 1) % ranks, 0, call.count, received);
    default:
      return 0;
  }
}

constexpr double kWarmUpSeconds = 0.05;

void Bench::agree(std::vector<double>& values, ReduceOp op) const {
  const std::size_t bytes = values.size() * sizeof(double);
  std::memcpy(words_.host(), values.data(), bytes);
  words_.upload();
  communicator_
      .all_reduce(words_.data(), words_.data(), std::ssize(values), DType::f64, op, stream_)
      ->wait();
  words_.download();
  std::memcpy(values.data(), words_.host(), bytes);
}

double Bench::average(double seconds) const {
  std::vector<double> value{seconds};
  switch (options_.average) {
    case Average::rank_0:
      if (communicator_.rank() != 0) value[0] = 0;
      agree(value, ReduceOp::sum);
      return value[0];
    case Average::mean:
      agree(value, ReduceOp::sum);
      return value[0] / communicator_.size();
    case Average::minimum:
      agree(value, ReduceOp::min);
      return value[0];
    default:
      agree(value, ReduceOp::max);
      return value[0];
  }
}

std::int64_t Bench::iterations(double seconds) const {
  if (options_.iterations > 0) return options_.iterations;
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(0.2 / seconds), 3, 20000);
}

std::vector<collectives::WorkPtr> Bench::start_iteration(const Call& call) const {
  std::vector<collectives::WorkPtr> works;
  const std::int64_t bytes = whole_bytes(call.count);
  const std::int64_t side_by_side = bytes > 0 ? std::max<std::int64_t>(1, largest_ / bytes) : 1;
  for (std::int64_t done = 0; done < options_.together;) {
    const std::int64_t calls = std::min(side_by_side, options_.together - done);
    if (calls == 1) {
      works.push_back(start(call));
    } else {
      communicator_.begin_group();
      for (std::int64_t i = 0; i < calls; ++i) {
        Call next = call;
        next.send += i * bytes;
        next.recv += i * bytes;
        start(next);
      }
      works.push_back(communicator_.end_group());
    }
    done += calls;
  }
  return works;
}

Bench::Seconds Bench::repeat(const Call& call, std::int64_t iterations) const {
  const Blocking blocking = options_.blocking;
  Seconds seconds;
  const auto begin = Clock::now();
  if (blocking == Blocking::every_call && options_.together == 1 && !options_.cpu_time) {
    for (std::int64_t i = 0; i < iterations; ++i) start(call)->wait();
    return {seconds_since(begin), 0};
  }
  double apart = 0;  // what does not count
  std::deque<collectives::WorkPtr> in_flight;
  const auto wait_for_all_but = [&](std::size_t number) {
    for (; in_flight.size() > number; in_flight.pop_front()) in_flight.front()->wait();
  };
  for (std::int64_t i = 0; i < iterations; ++i) {
    const auto starts = Clock::now();
    for (auto& work : start_iteration(call)) in_flight.push_back(std::move(work));
    seconds.starting += seconds_since(starts);
    wait_for_all_but(blocking == Blocking::at_the_end ? kMostInFlight : 0);
    const auto ended = Clock::now();
    if (has_barrier(blocking)) communicator_.barrier(stream_)->wait();
    if (blocking == Blocking::every_iteration) apart += seconds_since(ended);
  }
  wait_for_all_but(0);
  seconds.total = seconds_since(begin) - apart;
  return seconds;
}

std::int64_t Bench::check(Call& call) const {
  for (std::int64_t seed = 1;; ++seed) {
    start(call)->wait();
    if (options_.checks == 0) return -1;
    std::vector<double> bad{static_cast<double>(wrong(call))};
    agree(bad, ReduceOp::sum);
    if (bad[0] > 0 || seed == options_.checks) return static_cast<std::int64_t>(bad[0]);
    call = prepare(call.count, call.in_place, seed + 1);
  }
}

Timing Bench::time(std::int64_t count, bool in_place) const {
  Timing timing;
  Call call = prepare(count, in_place, 1);
  timing.wrong = check(call);
  // Repeated sums would grow without bound, and denormal or infinite numbers are slow.
  a_.zero();
  b_.zero();
  const auto bytes = count * static_cast<std::int64_t>(size_of(case_.dtype));
  const std::int64_t warm_up = options_.warm_up >= 0 ? options_.warm_up
                               : bytes < (1 << 20)   ? 20
                                                     : 2;
  const auto timed = [&](std::int64_t times) {
    communicator_.barrier(stream_)->wait();
    const Seconds seconds = repeat(call, times);
    const double calls = static_cast<double>(times * options_.together);
    if (has_barrier(options_.blocking)) start(call)->wait();  // the last call was the barrier
    const collectives::CommunicatorStatistics statistics = communicator_.statistics();
    timing.algorithm =
        options_.operation == Operation::send ? "message" : std::string(statistics.algorithm);
    timing.why = statistics.why;
    timing.cpu = seconds.starting / calls;
    return average(seconds.total / calls);
  };
  // Ranks that have just started may share a core until the kernel moves them. By default, the
  // warm-up therefore has a minimum duration.
  double once = timed(std::max<std::int64_t>(1, warm_up)), warm = 0;
  while (options_.warm_up < 0 &&
         (warm += once * static_cast<double>(warm_up * options_.together)) < kWarmUpSeconds)
    once = timed(warm_up);
  timing.iterations = iterations(once * static_cast<double>(options_.together));
  timing.mean = timed(timing.iterations);
  if (options_.stats) timing.calls = time_each(call, std::min(timing.iterations, kMostCallsKept));
  return timing;
}

std::vector<double> Bench::time_each(const Call& call, std::int64_t iterations) const {
  std::vector<double> calls(static_cast<std::size_t>(iterations));
  communicator_.barrier(stream_)->wait();
  for (double& seconds : calls) {
    const auto begin = Clock::now();
    for (const auto& work : start_iteration(call)) work->wait();
    seconds = seconds_since(begin) / static_cast<double>(options_.together);
    if (has_barrier(options_.blocking)) communicator_.barrier(stream_)->wait();
  }
  agree(calls, ReduceOp::max);
  return calls;
}

Result Bench::run(const Case& what, std::int64_t bytes) {
  case_ = what;
  const auto element = static_cast<std::int64_t>(size_of(what.dtype));
  for (Mirrored* each : {&a_, &b_})
    each->begin_at(static_cast<std::size_t>(options_.unalign * element));
  const int split = parts(options_.operation, communicator_.size());
  Result result;
  result.what = what;
  result.count = options_.operation == Operation::barrier ? 0 : bytes / element / split;
  result.bytes = whole_bytes(result.count);
  const Places places = places_of(options_.operation);
  if (options_.out_of_place && places.out) result.out_of_place = time(result.count, false);
  if (options_.in_place && places.in) result.in_place = time(result.count, true);
  return result;
}

}  // namespace shoal::perf
