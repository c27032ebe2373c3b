// An algorithm as data: what one rank of a collective sends, receives and reduces, and in which
// order. Generators (programs.h) are pure functions of (rank, size, count, …), so that every
// algorithm is proved for 1 to 17 ranks by playing the programs of all ranks in memory
// (tests/collectives/play.h); one small executor runs any program over an Endpoint. Programs are
// worth keeping: the same call has the same program.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::collectives::algorithm {

enum class Space : std::uint8_t {
  input,    // the call's send buffer; for premultiplied_sum a copy of it that is scaled already
  output,   // the call's recv buffer; broadcast's only buffer
  scratch,  // elements of the call's dtype
  partial   // scratch of the accumulation type: f32 for 16-bit floats, the call's dtype otherwise
};

// Elements [begin, begin + count) of a space. A message from or into partial has elements of the
// accumulation type; sender and receiver agree.
struct Piece {
  Space space = Space::input;
  std::int64_t begin = 0, count = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

enum class Verb : std::uint8_t {
  send,     // sources[0] to peer; finished when the source may be overwritten
  receive,  // target from peer
  copy,     // sources[0] to target, converting between dtype and partial; onto itself (a call in
            // place) it is nothing
  reduce    // target = left fold of sources (two or more), in order, or the sum by their canonical
            // tree, in the accumulation type; target is one of the sources, or apart from all
};

struct Instruction {
  Verb verb = Verb::copy;
  int peer = -1;               // send, receive; never this rank
  std::uint32_t ordinal = 0;   // send, receive: of this message from its sender to its receiver
  std::vector<Piece> sources;  // send, copy: one
  Piece target;                // receive, copy, reduce
  std::vector<int> after;      // instructions (smaller numbers) that must be finished first
  bool finish = false;         // reduce: the result is complete; scale by 1/size for avg
  bool in_tree = false;        // reduce: by the canonical tree; sources of the call's dtype only
};

// Instructions may run in any order that `after` allows; of those that may, the executor starts
// the one with the smallest number first. No two instructions that `after` leaves unordered touch
// the same elements, unless both read: neither out of place nor in place (program for program, as
// communicator.h defines it for each operation; some ranks may be in place and others not). Only
// barrier's messages are empty.
struct Program {
  std::int64_t scratch = 0, partial = 0;  // elements
  std::vector<Instruction> instructions;
};

}  // namespace shoal::collectives::algorithm
