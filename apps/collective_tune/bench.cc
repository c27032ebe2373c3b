#include "bench.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/transport/control.h"
#include "shoal/runtime/base/clock.h"

namespace shoal::tune {
namespace {

using collectives::Communicator;
using collectives::ReduceOp;

constexpr double kRoundSeconds = 2e-3;  // per candidate and round, unless one call takes longer
constexpr int kMostCalls = 200;

bool in_parts(Operation operation) {
  return operation != Operation::all_reduce && operation != Operation::broadcast &&
         operation != Operation::reduce;
}

void call(Communicator& c, Operation operation, const std::byte* send, std::byte* recv,
          std::int64_t bytes) {
  const std::int64_t whole = bytes / 4, part = in_parts(operation) ? whole / c.size() : whole;
  switch (operation) {
    case Operation::all_reduce:
      return c.all_reduce(send, recv, part, DType::f32, ReduceOp::sum)->wait();
    case Operation::reduce_scatter:
      return c.reduce_scatter(send, recv, part, DType::f32, ReduceOp::sum)->wait();
    case Operation::all_gather:
      return c.all_gather(send, recv, part, DType::f32)->wait();
    case Operation::broadcast:
      return c.broadcast(recv, part, DType::f32, 0)->wait();
    case Operation::reduce:
      return c.reduce(send, recv, part, DType::f32, ReduceOp::sum, 0)->wait();
    case Operation::gather:
      return c.gather(send, recv, part, DType::f32, 0)->wait();
    case Operation::scatter:
      return c.scatter(send, recv, part, DType::f32, 0)->wait();
    default:
      return c.all_to_all(send, recv, part, DType::f32)->wait();
  }
}

}  // namespace

std::vector<Scope> scopes_of(const World& world) {
  if (world.nodes == 1 || world.nodes == world.size) return {Scope::world};
  return {Scope::hosts, Scope::rails, Scope::world};
}

Bench::Bench(const World& world, Store& store, const Options& options, Scope scope,
             std::string rules)
    : world_(world),
      store_(store),
      options_(options),
      scope_(scope),
      rules_(std::move(rules)),
      control_(make_communicator(world, store, options.communicator)),
      host_(make_host_memory()) {
  std::vector<double> sizes{static_cast<double>(world.local_size),
                            -static_cast<double>(world.local_size)};
  agree(sizes);
  const int largest = static_cast<int>(sizes[0]), smallest = static_cast<int>(-sizes[1]);
  switch (scope) {
    case Scope::world:
      ranks_ = world.size;
      nodes_ = options.communicator.transport.empty() || options.communicator.transport == "shm" ||
                       world.nodes > 1
                   ? world.nodes
                   : world.size;  // a named network is used even on one host
      break;
    case Scope::hosts:  // with unequal hosts, tunes for the largest
      ranks_ = largest;
      color_ = world.local_size == largest ? world.node : -1;
      break;
    case Scope::rails:
      ranks_ = nodes_ = world.nodes;
      color_ = world.local_rank < smallest ? world.local_rank : -1;
  }
}

Communicator* Bench::with(const std::string& rules) {
  Made& made = made_[rules];
  if (!made.world) {
    collectives::CommunicatorOptions options = options_.communicator;
    options.collectives = rules_ + "\n" + rules;
    made.world = make_communicator(world_, store_, options);
    if (scope_ != Scope::world) made.group = made.world->split(color_, world_.rank);
  }
  return scope_ == Scope::world ? made.world.get() : made.group.get();
}

std::string Bench::rule_of(const Choice& choice) const {
  if (choice.algorithm == Algorithm::automatic) return "";
  collectives::Rule rule;
  rule.ranks = {ranks_, ranks_ + 1};
  rule.nodes = {nodes_, nodes_ + 1};
  rule.algorithm = choice.algorithm;
  rule.slice = choice.slice;
  return collectives::to_string(rule);
}

Choice Bench::usual(const Point& point) const {
  const auto selector = collectives::make_selector(rules_, ranks_);
  const auto selection =
      selector.select({point.operation, point.bytes,
                       nodes_ == 1 ? point.memory : MemoryKind::unknown, ranks_, nodes_},
                      collectives::offered(point.operation, ranks_, nodes_));
  return {selection.algorithm, selection.slice};
}

std::vector<Choice> Bench::choices(const Point& point) const {
  const Choice used = usual(point);
  std::vector<Choice> choices;
  for (const Algorithm algorithm : collectives::offered(point.operation, ranks_, nodes_))
    if (algorithm != used.algorithm &&
        (algorithm != Algorithm::inlined ||
         point.bytes <= static_cast<std::int64_t>(collectives::transport::kInlineBytes)))
      choices.push_back({algorithm, 0});
  return choices;
}

std::vector<Timed> Bench::time(const Point& point, const std::vector<Choice>& choices) {
  std::vector<Timed> timed{{}};
  std::vector<std::string> rules{""};
  for (const Choice& choice : choices) {
    timed.push_back({choice, {}});
    rules.push_back(rule_of(choice));
  }
  return time_all(point, std::move(timed), rules);
}

std::vector<Timed> Bench::time_rules(const Point& point, const std::string& more) {
  return time_all(point, {{}, {}}, {"", more});
}

void Bench::agree(std::vector<double>& values) {
  control_
      ->all_reduce(values.data(), values.data(), static_cast<std::int64_t>(values.size()),
                   DType::f64, ReduceOp::max)
      ->wait();
}

double Bench::run(const Point& point, const Place& place, int times) {
  control_->barrier()->wait();
  const auto begin = Clock::now();
  if (place.communicator)
    for (int i = 0; i < times; ++i)
      call(*place.communicator, point.operation, place.send, place.recv, point.bytes);
  return seconds_since(begin) / times;
}

std::vector<Timed> Bench::time_all(const Point& point, std::vector<Timed> timed,
                                   const std::vector<std::string>& rules) {
  const auto bytes = static_cast<std::size_t>(point.bytes);
  std::vector<Place> places(timed.size());
  const Buffer plain(*host_, 2 * bytes, MemoryTag::communication);
  for (std::size_t c = 0; c < timed.size(); ++c) {
    Place& place = places[c];
    place.communicator = with(rules[c]);
    if (!place.communicator) continue;
    if (point.memory == MemoryKind::symmetric)
      place.symmetric =
          Buffer(place.communicator->memory_resource(), 2 * bytes, MemoryTag::communication);
    const Buffer& buffer = point.memory == MemoryKind::symmetric ? place.symmetric : plain;
    place.send =
        static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(buffer.data())));
    place.recv = place.send + bytes;
    std::memset(place.send, 0, 2 * bytes);
  }
  // One call of each candidate connects and warms up. Two more calls of the first candidate, the
  // default, are timed and determine the number of calls per round.
  double once = 0;
  for (const Place& place : places) run(point, place, 1);
  std::vector<double> seconds{run(point, places.front(), 2)};
  agree(seconds);
  once = std::max(seconds.front(), 1e-7);
  const int times = std::clamp(static_cast<int>(kRoundSeconds / once), 1, kMostCalls);
  std::vector<double> all;
  for (int round = 0; round < options_.rounds; ++round)
    for (std::size_t c = 0; c < places.size(); ++c) {
      // Each round starts with a different candidate.
      const std::size_t turn = (c + static_cast<std::size_t>(round)) % places.size();
      all.resize(places.size() * static_cast<std::size_t>(options_.rounds));
      all[turn * static_cast<std::size_t>(options_.rounds) + static_cast<std::size_t>(round)] =
          run(point, places[turn], times);
    }
  agree(all);  // also keeps ranks from freeing memory that others still map
  for (std::size_t c = 0; c < timed.size(); ++c) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(c) * options_.rounds;
    timed[c].seconds.assign(first, first + options_.rounds);
  }
  return timed;
}

}  // namespace shoal::tune
