// Writes a Program as if it ran sequentially. Derives `after` from the elements that instructions
// touch: instructions that touch different elements run concurrently.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "shoal/collectives/algorithm/program.h"
#include "shoal/collectives/algorithm/programs.h"
#include "shoal/collectives/algorithm/shard.h"

namespace shoal::collectives::algorithm {

// Last writer and later readers of each element.
class ElementLog {
 public:
  // Appends to `after` the instructions that `number` must wait for, then records its access.
  void read(std::int64_t begin, std::int64_t end, int number, std::vector<int>& after);
  void write(std::int64_t begin, std::int64_t end, int number, std::vector<int>& after);

 private:
  struct Segment {
    std::int64_t end = 0;
    int writer = -1;
    std::vector<int> readers;  // since the writer
  };
  std::map<std::int64_t, Segment>::iterator split(std::int64_t at);
  std::map<std::int64_t, Segment> segments_;  // by begin; gaps were never touched
};

// `shift`: in place, element i of input is element i + shift of output; nullopt: never in place.
class ProgramBuilder {
 public:
  ProgramBuilder(Member member, std::optional<std::int64_t> shift);

  // Each returns the instruction's number, or -1 if there are no elements. `after`: numbers of
  // instructions that must run first although they share no element; -1 is ignored.
  int send(int peer, Piece source, std::initializer_list<int> after = {});
  int receive(int peer, Piece target, std::initializer_list<int> after = {});
  int copy(Piece source, Piece target);
  // A single source means a group of one rank: it is copied, and `finish` does not apply.
  int reduce(std::vector<Piece> sources, Piece target, bool finish = false, bool in_tree = false);
  // Empty messages, for barrier.
  int signal(int peer, std::initializer_list<int> after = {});
  int await(int peer, std::initializer_list<int> after = {});

  Piece new_scratch(std::int64_t count);
  Piece new_partial(std::int64_t count);

  Program take() { return std::move(program_); }
  int rank() const { return member_.rank; }
  int size() const { return member_.size; }
  // The rank `distance` positions further along the ring; negative: backwards.
  int neighbour(int distance) const;

 private:
  int add(Instruction instruction, std::initializer_list<int> after);
  void note(const Piece& piece, bool writes, bool self_copy, int number, std::vector<int>& after);

  Member member_;
  std::optional<std::int64_t> shift_;
  Program program_;
  std::vector<std::uint32_t> sent_, received_;  // ordinals, by peer
  // Out of place, input is only read and needs no log. In place, input and output share one log
  // (coordinates of output), and a copy onto itself touches nothing.
  ElementLog output_, in_place_, scratch_, partial_;
};

// Elements [range) of `piece`, relative to its begin.
inline Piece part(const Piece& piece, Range range) {
  return {piece.space, piece.begin + range.begin, range.size()};
}

// [0, count) in messages of at most slicing.slice elements.
inline Slices slices_of(std::int64_t count, Slicing slicing) {
  return {count, slicing.slice > 0 ? slicing.slice : (count > 0 ? count : 1)};
}

// Ranges of parts that follow each other without gaps.
std::vector<Range> packed(PartCounts counts);
std::vector<Range> shards(std::int64_t count, int parts, std::int64_t granule);
std::int64_t largest(std::span<const Range> ranges);

// Number of buffers that a loop over slices uses in turn: the most slices in flight.
inline constexpr std::int64_t kSlicesInFlight = 4;

}  // namespace shoal::collectives::algorithm
