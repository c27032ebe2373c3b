#include "shoal/collectives/backend/hierarchical/block_exchange.h"

#include <algorithm>
#include <numeric>

namespace shoal::collectives {
namespace {

Range common(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

Instruction message(Verb verb, int peer, Piece piece) {
  Instruction instruction;
  instruction.verb = verb;
  instruction.peer = peer;
  if (verb == Verb::send)
    instruction.sources = {piece};
  else
    instruction.target = piece;
  return instruction;
}

}  // namespace

Blocks::Blocks(const Placement& where, std::vector<std::int64_t> counts)
    : where_(where), starts_(counts.size() + 1, 0) {
  std::partial_sum(counts.begin(), counts.end(), starts_.begin() + 1);
}

Range Blocks::part(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return {starts_[r], starts_[r + 1]};
}

Range Blocks::block(int node) const {
  const auto& members = where_.members(node);
  return {part(members.front()).begin, part(members.back()).end};
}

Range Blocks::shard_at(int of, int at, int local) const {
  const Range whole = block(of);
  const Range piece = shard(whole.size(), where_.local_size(at), local, 1);
  return {whole.begin + piece.begin, whole.begin + piece.end};
}

Program Blocks::gather_step(int rank, int distance) const {
  const int own = where_.node_of(rank), nodes = where_.nodes();
  const int ahead = (own + distance) % nodes, behind = (own - distance + nodes) % nodes;
  const Range mine = part(rank);
  Program program;
  for (int local = 0; local < where_.local_size(ahead); ++local) {
    const Range piece = common(mine, shard_at(own, ahead, local));
    if (!piece.empty())
      program.instructions.push_back(
          message(Verb::send, where_.members(ahead)[static_cast<std::size_t>(local)],
                  {Space::input, piece.begin - mine.begin, piece.size()}));
  }
  const Range shard = shard_at(behind, own, where_.local_rank(rank));
  for (const int peer : where_.members(behind)) {
    const Range piece = common(part(peer), shard);
    if (!piece.empty())
      program.instructions.push_back(
          message(Verb::receive, peer, {Space::output, piece.begin, piece.size()}));
  }
  return program;
}

Program Blocks::scatter_step(int rank, int distance) const {
  const int own = where_.node_of(rank), nodes = where_.nodes();
  const int ahead = (own + distance) % nodes, behind = (own - distance + nodes) % nodes;
  Program program;
  const Range shard = shard_at(ahead, own, where_.local_rank(rank));
  for (const int peer : where_.members(ahead)) {
    const Range piece = common(part(peer), shard);
    if (!piece.empty())
      program.instructions.push_back(
          message(Verb::send, peer, {Space::input, piece.begin - shard.begin, piece.size()}));
  }
  const Range mine = part(rank);
  for (int local = 0; local < where_.local_size(behind); ++local) {
    const Range piece = common(mine, shard_at(own, behind, local));
    if (!piece.empty())
      program.instructions.push_back(
          message(Verb::receive, where_.members(behind)[static_cast<std::size_t>(local)],
                  {Space::output, piece.begin - mine.begin, piece.size()}));
  }
  return program;
}

}  // namespace shoal::collectives
