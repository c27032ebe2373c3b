#include "shoal/collectives/backend/hierarchical/block_exchange.h"

#include <algorithm>
#include <numeric>

namespace shoal::collectives::hierarchical {
namespace {

algorithm::Range common(algorithm::Range a, algorithm::Range b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

algorithm::Instruction message(algorithm::Verb verb, int peer, algorithm::Piece piece) {
  algorithm::Instruction instruction;
  instruction.verb = verb;
  instruction.peer = peer;
  if (verb == algorithm::Verb::send)
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

algorithm::Range Blocks::part(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return {starts_[r], starts_[r + 1]};
}

algorithm::Range Blocks::block(int node) const {
  const auto& members = where_.members(node);
  return {part(members.front()).begin, part(members.back()).end};
}

algorithm::Range Blocks::piece(int node, int index) const {
  const algorithm::Range whole = block(node),
                         range = algorithm::shard(whole.size(), pieces_, index, 1);
  return {whole.begin + range.begin, whole.begin + range.end};
}

int Blocks::piece_in_turn(int turn) const {
  // Goes column by column through a table with one row per rank of the smallest host; the last row
  // may be short.
  const int rows = std::min(where_.rails(), pieces_), columns = (pieces_ + rows - 1) / rows;
  for (int column = 0; column < columns; ++column)
    for (int at = column; at < pieces_; at += columns)
      if (turn-- == 0) return at;
  return -1;
}

algorithm::Range Blocks::shard_at(int of, int at, int local, int index) const {
  const algorithm::Range whole = piece(of, index);
  const algorithm::Range share = algorithm::shard(whole.size(), where_.local_size(at), local, 1);
  return {whole.begin + share.begin, whole.begin + share.end};
}

algorithm::Program Blocks::gather_step(int rank, int distance, int index) const {
  const int own = where_.node_of(rank), nodes = where_.nodes();
  const int ahead = (own + distance) % nodes, behind = (own - distance + nodes) % nodes;
  const algorithm::Range mine = part(rank);
  algorithm::Program program;
  for (int local = 0; local < where_.local_size(ahead); ++local) {
    const algorithm::Range both = common(mine, shard_at(own, ahead, local, index));
    if (!both.empty())
      program.instructions.push_back(
          message(algorithm::Verb::send, where_.members(ahead)[static_cast<std::size_t>(local)],
                  {algorithm::Space::input, both.begin - mine.begin, both.size()}));
  }
  const algorithm::Range shard = shard_at(behind, own, where_.local_rank(rank), index);
  for (const int peer : where_.members(behind)) {
    const algorithm::Range both = common(part(peer), shard);
    if (!both.empty())
      program.instructions.push_back(message(algorithm::Verb::receive, peer,
                                             {algorithm::Space::output, both.begin, both.size()}));
  }
  return program;
}

algorithm::Program Blocks::scatter_step(int rank, int distance, int index) const {
  const int own = where_.node_of(rank), nodes = where_.nodes();
  const int ahead = (own + distance) % nodes, behind = (own - distance + nodes) % nodes;
  algorithm::Program program;
  const algorithm::Range shard = shard_at(ahead, own, where_.local_rank(rank), index);
  for (const int peer : where_.members(ahead)) {
    const algorithm::Range both = common(part(peer), shard);
    if (!both.empty())
      program.instructions.push_back(
          message(algorithm::Verb::send, peer,
                  {algorithm::Space::input, both.begin - shard.begin, both.size()}));
  }
  const algorithm::Range mine = part(rank);
  for (int local = 0; local < where_.local_size(behind); ++local) {
    const algorithm::Range both = common(mine, shard_at(own, behind, local, index));
    if (!both.empty())
      program.instructions.push_back(
          message(algorithm::Verb::receive, where_.members(behind)[static_cast<std::size_t>(local)],
                  {algorithm::Space::output, both.begin - mine.begin, both.size()}));
  }
  return program;
}

}  // namespace shoal::collectives::hierarchical
