#include "shoal/collectives/algorithm/builder.h"

#include <algorithm>
#include <iterator>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives::algorithm {

std::map<std::int64_t, ElementLog::Segment>::iterator ElementLog::split(std::int64_t at) {
  auto next = segments_.lower_bound(at);
  if (next == segments_.begin()) return next;
  const auto before = std::prev(next);
  if (before->second.end <= at) return next;
  Segment tail = before->second;
  before->second.end = at;
  return segments_.emplace_hint(next, at, std::move(tail));
}

void ElementLog::read(std::int64_t begin, std::int64_t end, int number, std::vector<int>& after) {
  auto at = split(begin);
  split(end);
  while (begin < end) {
    if (at == segments_.end() || at->first > begin) {  // a gap
      const std::int64_t gap_end = at == segments_.end() ? end : std::min(end, at->first);
      at = std::next(segments_.emplace_hint(at, begin, Segment{gap_end, -1, {number}}));
      begin = gap_end;
      continue;
    }
    if (at->second.writer >= 0) after.push_back(at->second.writer);
    at->second.readers.push_back(number);
    begin = at->second.end;
    ++at;
  }
}

void ElementLog::write(std::int64_t begin, std::int64_t end, int number, std::vector<int>& after) {
  const auto first = split(begin);
  split(end);
  auto at = first;
  for (; at != segments_.end() && at->first < end; ++at) {
    if (at->second.writer >= 0) after.push_back(at->second.writer);
    after.insert(after.end(), at->second.readers.begin(), at->second.readers.end());
  }
  segments_.erase(first, at);
  segments_.emplace(begin, Segment{end, number, {}});
}

ProgramBuilder::ProgramBuilder(Member member, std::optional<std::int64_t> shift)
    : member_(member),
      shift_(shift),
      sent_(static_cast<std::size_t>(std::max(0, member.size))),
      received_(sent_) {
  SHOAL_CHECK(member.size > 0 && member.rank >= 0 && member.rank < member.size,
              "a program for rank {} of {}", member.rank, member.size);
}

int ProgramBuilder::neighbour(int distance) const {
  return ((member_.rank + distance) % member_.size + member_.size) % member_.size;
}

Piece ProgramBuilder::new_scratch(std::int64_t count) {
  program_.scratch += count;
  return {Space::scratch, program_.scratch - count, count};
}

Piece ProgramBuilder::new_partial(std::int64_t count) {
  program_.partial += count;
  return {Space::partial, program_.partial - count, count};
}

void ProgramBuilder::note(const Piece& piece, bool writes, bool self_copy, int number,
                          std::vector<int>& after) {
  const auto log = [&](ElementLog& elements, std::int64_t shift) {
    const std::int64_t begin = piece.begin + shift, end = begin + piece.count;
    if (writes)
      elements.write(begin, end, number, after);
    else
      elements.read(begin, end, number, after);
  };
  switch (piece.space) {
    case Space::input:
      if (shift_ && !self_copy) log(in_place_, *shift_);
      break;
    case Space::output:
      log(output_, 0);
      if (shift_ && !self_copy) log(in_place_, 0);
      break;
    case Space::scratch:
      log(scratch_, 0);
      break;
    case Space::partial:
      log(partial_, 0);
      break;
  }
}

int ProgramBuilder::add(Instruction instruction, std::initializer_list<int> after) {
  const int number = static_cast<int>(program_.instructions.size());
  const bool writes = instruction.verb != Verb::send;
  const Piece& target = instruction.target;
  const bool self_copy =
      shift_ && instruction.verb == Verb::copy && instruction.sources[0].space == Space::input &&
      target.space == Space::output && instruction.sources[0].begin + *shift_ == target.begin;
  std::vector<int>& all = instruction.after;
  for (const Piece& source : instruction.sources)
    if (source.count > 0) note(source, false, self_copy, number, all);
  if (writes && target.count > 0) note(target, true, self_copy, number, all);
  all.insert(all.end(), after.begin(), after.end());
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::erase_if(all, [&](int other) { return other < 0 || other == number; });
  program_.instructions.push_back(std::move(instruction));
  return number;
}

int ProgramBuilder::signal(int peer, std::initializer_list<int> after) {
  return add({.verb = Verb::send,
              .peer = peer,
              .ordinal = sent_[static_cast<std::size_t>(peer)]++,
              .sources = {Piece{Space::scratch, 0, 0}},
              .target = {},
              .after = {}},
             after);
}

int ProgramBuilder::await(int peer, std::initializer_list<int> after) {
  return add({.verb = Verb::receive,
              .peer = peer,
              .ordinal = received_[static_cast<std::size_t>(peer)]++,
              .sources = {},
              .target = Piece{Space::scratch, 0, 0},
              .after = {}},
             after);
}

int ProgramBuilder::send(int peer, Piece source, std::initializer_list<int> after) {
  if (source.count == 0) return -1;
  SHOAL_ASSERT(peer != member_.rank);
  return add({.verb = Verb::send,
              .peer = peer,
              .ordinal = sent_[static_cast<std::size_t>(peer)]++,
              .sources = {source},
              .target = {},
              .after = {}},
             after);
}

int ProgramBuilder::receive(int peer, Piece target, std::initializer_list<int> after) {
  if (target.count == 0) return -1;
  SHOAL_ASSERT(peer != member_.rank);
  return add({.verb = Verb::receive,
              .peer = peer,
              .ordinal = received_[static_cast<std::size_t>(peer)]++,
              .sources = {},
              .target = target,
              .after = {}},
             after);
}

int ProgramBuilder::copy(Piece source, Piece target) {
  SHOAL_ASSERT(source.count == target.count);
  if (source.count == 0) return -1;
  return add({.verb = Verb::copy, .peer = -1, .sources = {source}, .target = target, .after = {}},
             {});
}

int ProgramBuilder::reduce(std::vector<Piece> sources, Piece target, bool finish, bool in_tree) {
  if (sources.size() == 1) return copy(sources[0], target);
  if (target.count == 0) return -1;
  return add({.verb = Verb::reduce,
              .peer = -1,
              .sources = std::move(sources),
              .target = target,
              .after = {},
              .finish = finish,
              .in_tree = in_tree},
             {});
}

std::vector<Range> packed(PartCounts counts) {
  std::vector<Range> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t count : counts) {
    SHOAL_CHECK(count >= 0, "a part of {} elements", count);
    ranges.push_back({begin, begin + count});
    begin += count;
  }
  return ranges;
}

std::vector<Range> shards(std::int64_t count, int parts, std::int64_t granule) {
  std::vector<Range> ranges;
  for (int index = 0; index < parts; ++index) ranges.push_back(shard(count, parts, index, granule));
  return ranges;
}

std::int64_t largest(std::span<const Range> ranges) {
  std::int64_t size = 0;
  for (const Range& range : ranges) size = std::max(size, range.size());
  return size;
}

}  // namespace shoal::collectives::algorithm
