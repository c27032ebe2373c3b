#include "shoal/collectives/backend/net/direct_programs.h"

#include <numeric>

#include "shoal/collectives/algorithm/shard.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

// Starts of consecutive parts; one more entry than parts.
std::vector<std::int64_t> starts_of(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> starts(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), starts.begin() + 1);
  return starts;
}

class Builder {
 public:
  Builder(int rank, int size) : rank_(rank), size_(size) {}

  int send(int peer, Piece from, std::vector<int> after = {}, std::uint32_t ordinal = 0) {
    Instruction i;
    i.verb = Verb::send;
    i.peer = peer;
    i.ordinal = ordinal;
    i.sources = {from};
    i.after = std::move(after);
    return add(std::move(i));
  }
  int receive(int peer, Piece to, std::vector<int> after = {}, std::uint32_t ordinal = 0) {
    Instruction i;
    i.verb = Verb::receive;
    i.peer = peer;
    i.ordinal = ordinal;
    i.target = to;
    i.after = std::move(after);
    return add(std::move(i));
  }
  int copy(Piece from, Piece to, std::vector<int> after = {}) {
    Instruction i;
    i.sources = {from};
    i.target = to;
    i.after = std::move(after);
    return add(std::move(i));
  }
  int reduce(std::vector<Piece> from, Piece to, std::vector<int> after) {
    Instruction i;
    i.verb = Verb::reduce;
    i.sources = std::move(from);
    i.target = to;
    i.after = std::move(after);
    i.finish = true;
    return add(std::move(i));
  }

  // Each rank's part of everybody's input, reduced into `target` (of counts[rank] elements) in rank
  // order. Says the number of the reduction and, by peer, of the send of its part.
  int reduce_parts(const std::vector<std::int64_t>& counts, Piece target, std::vector<int>& sends) {
    const auto starts = starts_of(counts);
    const std::int64_t own = counts[static_cast<std::size_t>(rank_)];
    sends.assign(static_cast<std::size_t>(size_), -1);
    for (int step = 1; step < size_; ++step) {
      const int peer = (rank_ + step) % size_;
      const auto p = static_cast<std::size_t>(peer);
      sends[p] = send(peer, {Space::input, starts[p], counts[p]});
    }
    std::vector<Piece> sources;
    std::vector<int> after;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) {
        sources.push_back({Space::input, starts[static_cast<std::size_t>(rank_)], own});
        continue;
      }
      const Piece slot{Space::scratch, program_.scratch, own};
      program_.scratch += own;
      after.push_back(receive(peer, slot));
      sources.push_back(slot);
    }
    return reduce(std::move(sources), target, std::move(after));
  }

  int size() const { return size_; }
  int rank() const { return rank_; }
  Program take() { return std::move(program_); }

 private:
  int add(Instruction instruction) {
    program_.instructions.push_back(std::move(instruction));
    return static_cast<int>(program_.instructions.size()) - 1;
  }
  int rank_, size_;
  Program program_;
};

void barrier(Builder& b) {  // dissemination (Hensgen, Finkel and Manber, 1988)
  std::vector<int> after;
  for (int distance = 1; distance < b.size(); distance *= 2) {
    const auto round = static_cast<std::uint32_t>(distance);
    b.send((b.rank() + distance) % b.size(), {}, after, round);
    after = {b.receive((b.rank() - distance + b.size()) % b.size(), {}, after, round)};
  }
}

void all_gather_parts(Builder& b, const std::vector<std::int64_t>& counts) {
  const auto starts = starts_of(counts);
  const auto own = static_cast<std::size_t>(b.rank());
  const Piece mine{Space::input, 0, counts[own]};
  b.copy(mine, {Space::output, starts[own], counts[own]});
  for (int step = 1; step < b.size(); ++step) {
    b.send((b.rank() + step) % b.size(), mine);
    const int from = (b.rank() - step + b.size()) % b.size();
    const auto f = static_cast<std::size_t>(from);
    b.receive(from, {Space::output, starts[f], counts[f]});
  }
}

void all_reduce(Builder& b, std::int64_t count) {
  std::vector<std::int64_t> counts;
  for (int part = 0; part < b.size(); ++part)
    counts.push_back(shard(count, b.size(), part, 32).size());
  const auto starts = starts_of(counts);
  const auto own = static_cast<std::size_t>(b.rank());
  const Piece mine{Space::output, starts[own], counts[own]};
  std::vector<int> sends;
  const int reduced = b.reduce_parts(counts, mine, sends);
  for (int step = 1; step < b.size(); ++step) {
    b.send((b.rank() + step) % b.size(), mine, {reduced}, 1);
    const int from = (b.rank() - step + b.size()) % b.size();
    const auto f = static_cast<std::size_t>(from);
    // In place the part still has to leave before its result may come.
    b.receive(from, {Space::output, starts[f], counts[f]}, {sends[f]}, 1);
  }
}

void broadcast(Builder& b, std::int64_t count, int root) {  // binomial tree
  const int place = (b.rank() - root + b.size()) % b.size();
  const Piece all{Space::output, 0, count};
  std::vector<int> after;
  int bit = 1;
  for (; bit < b.size(); bit *= 2)
    if (place & bit) {
      after = {b.receive((place - bit + root) % b.size(), all)};
      break;
    }
  for (bit /= 2; bit > 0; bit /= 2)
    if (place + bit < b.size()) b.send((place + bit + root) % b.size(), all, after);
}

void reduce_to_root(Builder& b, std::int64_t count, int root) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(b.size()), 0);
  counts[static_cast<std::size_t>(root)] = count;
  std::vector<int> sends;
  if (b.rank() == root)
    b.reduce_parts(counts, {Space::output, 0, count}, sends);
  else
    b.send(root, {Space::input, 0, count});
}

void gather(Builder& b, std::int64_t count, int root) {
  const Piece mine{Space::input, 0, count};
  if (b.rank() != root) {
    b.send(root, mine);
    return;
  }
  b.copy(mine, {Space::output, root * count, count});
  for (int peer = 0; peer < b.size(); ++peer)
    if (peer != root) b.receive(peer, {Space::output, peer * count, count});
}

void scatter(Builder& b, std::int64_t count, int root) {
  const Piece mine{Space::output, 0, count};
  if (b.rank() != root) {
    b.receive(root, mine);
    return;
  }
  b.copy({Space::input, root * count, count}, mine);
  for (int peer = 0; peer < b.size(); ++peer)
    if (peer != root) b.send(peer, {Space::input, peer * count, count});
}

void all_to_all_parts(Builder& b, const std::vector<std::int64_t>& out,
                      const std::vector<std::int64_t>& in) {
  const auto from = starts_of(out), to = starts_of(in);
  const auto piece = [](Space space, const auto& starts, const auto& counts, int peer) {
    const auto p = static_cast<std::size_t>(peer);
    return Piece{space, starts[p], counts[p]};
  };
  b.copy(piece(Space::input, from, out, b.rank()), piece(Space::output, to, in, b.rank()));
  for (int step = 1; step < b.size(); ++step) {
    const int next = (b.rank() + step) % b.size(), last = (b.rank() - step + b.size()) % b.size();
    b.send(next, piece(Space::input, from, out, next));
    b.receive(last, piece(Space::output, to, in, last));
  }
}

}  // namespace

Program direct_program(const Call& call, int rank, int size) {
  Builder b(rank, size);
  const std::vector<std::int64_t> equal(static_cast<std::size_t>(size), call.count);
  const auto& counts = has_counts(call.operation) ? call.counts : equal;
  std::vector<int> sends;
  switch (call.operation) {
    case Operation::all_reduce:
      all_reduce(b, call.count);
      break;
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
      b.reduce_parts(counts, {Space::output, 0, counts[static_cast<std::size_t>(rank)]}, sends);
      break;
    case Operation::all_gather:
    case Operation::all_gather_v:
    case Operation::split:
      all_gather_parts(b, counts);
      break;
    case Operation::broadcast:
      broadcast(b, call.count, call.root);
      break;
    case Operation::reduce:
      reduce_to_root(b, call.count, call.root);
      break;
    case Operation::gather:
      gather(b, call.count, call.root);
      break;
    case Operation::scatter:
      scatter(b, call.count, call.root);
      break;
    case Operation::all_to_all:
      all_to_all_parts(b, counts, counts);
      break;
    case Operation::all_to_all_v:
      all_to_all_parts(b, call.counts, call.recv_counts);
      break;
    case Operation::send:
    case Operation::recv:
      SHOAL_ASSERT(false);  // a message is no collective
    case Operation::barrier:
      barrier(b);
      break;
  }
  return b.take();
}

}  // namespace shoal::collectives
