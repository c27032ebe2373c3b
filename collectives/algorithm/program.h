// An algorithm as data: the sends, receives and reductions of one rank and their order. Generators
// (programs.h) are pure functions of (rank, size, count, …). Tests can therefore verify every
// algorithm for 1 to 17 ranks by playing all ranks' programs in memory (tests/collectives/play.h).
//
// One small executor runs any program over an Endpoint. Programs can be cached: the same call gives
// the same program.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::collectives::algorithm {

enum class Space : std::uint8_t {
  input,    // the call's send buffer; premultiplied_sum: a scaled copy of it
  output,   // the call's recv buffer; broadcast's only buffer
  scratch,  // elements of the call's dtype
  partial   // scratch of the accumulation type: f32 for 16-bit floats, the call's dtype otherwise
};

// Elements [begin, begin + count) of a space. A message from or into partial has elements of the
// accumulation type; sender and receiver agree on it.
struct Piece {
  Space space = Space::input;
  std::int64_t begin = 0, count = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

enum class Verb : std::uint8_t {
  send,     // sources[0] to peer; finished when the source may be overwritten
  receive,  // target from peer
  copy,  // sources[0] to target, converting between dtype and partial; no-op onto itself (in place)
  reduce  // target = sum of two or more sources in the accumulation type: left fold in order, or
          // by the canonical tree; target is one of the sources or disjoint from all
};

struct Instruction {
  Verb verb = Verb::copy;
  int peer = -1;               // send, receive; never this rank
  std::uint32_t ordinal = 0;   // send, receive: counts messages from this sender to this receiver
  std::vector<Piece> sources;  // send, copy: one
  Piece target;                // receive, copy, reduce
  std::vector<int> after;      // instructions (smaller numbers) that must finish first
  bool finish = false;         // reduce: the result is complete; scale by 1/size for avg
  bool in_tree = false;        // reduce: by the canonical tree; sources of the call's dtype only
};

// Instructions may run in any order that `after` allows; the executor starts the ready one with the
// smallest number first. If `after` leaves two instructions unordered, they touch the same elements
// only to read them. This holds out of place and in place (as communicator.h defines it for each
// operation); ranks may mix the two. Only barrier's messages are empty.
struct Program {
  std::int64_t scratch = 0, partial = 0;  // elements
  std::vector<Instruction> instructions;
};

}  // namespace shoal::collectives::algorithm
