// Writes a Program as if it ran sequentially and derives `after` from the elements that
// instructions touch: what does not touch the same elements runs side by side.
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

// Who wrote and who has read each element last.
class ElementLog {
 public:
  // Adds what instruction `number` has to wait for to `after`, then notes its access.
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

// `shift`: in place, element i of input is element i + shift of output; none: never in place.
class ProgramBuilder {
 public:
  ProgramBuilder(Member member, std::optional<std::int64_t> shift);

  // Each returns the instruction's number, or -1 where there is nothing to do (no elements).
  // `after` adds instructions that no element shows; -1 in it is ignored.
  int send(int peer, Piece source, std::initializer_list<int> after = {});
  int receive(int peer, Piece target, std::initializer_list<int> after = {});
  int copy(Piece source, Piece target);
  // A single source is copied, and then there is nothing to finish: it is the only rank's.
  int reduce(std::vector<Piece> sources, Piece target, bool finish = false, bool in_tree = false);
  // Empty messages, for barrier.
  int signal(int peer, std::initializer_list<int> after = {});
  int await(int peer, std::initializer_list<int> after = {});

  Piece new_scratch(std::int64_t count);
  Piece new_partial(std::int64_t count);

  Program take() { return std::move(program_); }
  int rank() const { return member_.rank; }
  int size() const { return member_.size; }
  // Rank `distance` further round the ring; negative: back.
  int neighbour(int distance) const;

 private:
  int add(Instruction instruction, std::initializer_list<int> after);
  void note(const Piece& piece, bool writes, bool self_copy, int number, std::vector<int>& after);

  Member member_;
  std::optional<std::int64_t> shift_;
  Program program_;
  std::vector<std::uint32_t> sent_, received_;  // ordinals, by peer
  // Out of place, input is only read: nothing to log. In place, both are one (coordinates of
  // output) and a copy onto itself touches nothing.
  ElementLog output_, in_place_, scratch_, partial_;
};

// Elements [range) of `piece`, relative to its begin.
inline Piece part(const Piece& piece, Range range) {
  return {piece.space, piece.begin + range.begin, range.size()};
}

// [0, count) in messages of at most slicing.slice.
inline Slices slices_of(std::int64_t count, Slicing slicing) {
  return {count, slicing.slice > 0 ? slicing.slice : (count > 0 ? count : 1)};
}

// Packed parts as ranges.
std::vector<Range> packed(PartCounts counts);
std::vector<Range> shards(std::int64_t count, int parts, std::int64_t granule);
std::int64_t largest(std::span<const Range> ranges);

// Buffers that a loop over slices uses by turns: as many slices are on their way at most.
inline constexpr std::int64_t kSlicesInFlight = 4;

}  // namespace shoal::collectives::algorithm
