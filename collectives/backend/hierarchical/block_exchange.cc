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

Blocks::Blocks(const Placement& where, std::vector<std::int64_t> counts, int pieces)
    : where_(where), starts_(counts.size() + 1, 0), pieces_(pieces) {
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

Range Blocks::piece(int node, int index) const {
  const Range whole = block(node), range = shard(whole.size(), pieces_, index, 1);
  return {whole.begin + range.begin, whole.begin + range.end};
}

int Blocks::piece_in_turn(int turn) const {
  // Column by column of a table with a row for each rank of the smallest host, the last row short.
  const int rows = std::min(where_.rails(), pieces_), columns = (pieces_ + rows - 1) / rows;
  for (int column = 0; column < columns; ++column)
    for (int at = column; at < pieces_; at += columns)
      if (turn-- == 0) return at;
  return -1;
}

Range Blocks::shard_at(int of, int at, int local, int index) const {
  const Range whole = piece(of, index);
  const Range share = shard(whole.size(), where_.local_size(at), local, 1);
  return {whole.begin + share.begin, whole.begin + share.end};
}

Program Blocks::gather_step(int rank, int distance, int index) const {
  const int own = where_.node_of(rank), nodes = where_.nodes();
  const int ahead = (own + distance) % nodes, behind = (own - distance + nodes) % nodes;
  const Range mine = part(rank);
  Program program;
  for (int local = 0; local < where_.local_size(ahead); ++local) {
    const Range both = common(mine, shard_at(own, ahead, local, index));
    if (!both.empty())
      program.instructions.push_back(message(Verb::send,
                                             where_.members(ahead)[static_cast<std::size_t>(local)],
                                             {Space::input, both.begin - mine.begin, both.size()}));
  }
  const Range shard = shard_at(behind, own, where_.local_rank(rank), index);
  for (const int peer : where_.members(behind)) {
    const Range both = common(part(peer), shard);
    if (!both.empty())
      program.instructions.push_back(
          message(Verb::receive, peer, {Space::output, both.begin, both.size()}));
  }
  return program;
}

Program Blocks::scatter_step(int rank, int distance, int index) const {
  const int own = where_.node_of(rank), nodes = where_.nodes();
  const int ahead = (own + distance) % nodes, behind = (own - distance + nodes) % nodes;
  Program program;
  const Range shard = shard_at(ahead, own, where_.local_rank(rank), index);
  for (const int peer : where_.members(ahead)) {
    const Range both = common(part(peer), shard);
    if (!both.empty())
      program.instructions.push_back(
          message(Verb::send, peer, {Space::input, both.begin - shard.begin, both.size()}));
  }
  const Range mine = part(rank);
  for (int local = 0; local < where_.local_size(behind); ++local) {
    const Range both = common(mine, shard_at(own, behind, local, index));
    if (!both.empty())
      program.instructions.push_back(
          message(Verb::receive, where_.members(behind)[static_cast<std::size_t>(local)],
                  {Space::output, both.begin - mine.begin, both.size()}));
  }
  return program;
}

}  // namespace shoal::collectives
