// An algorithm as data: what one rank of a collective sends, receives and reduces, and in which
// order. Generators are pure functions of (rank, size, count, …), so that every algorithm is
// proved for 1 to 17 ranks by playing the programs of all ranks in memory; one small executor
// runs any program over an Endpoint.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::collectives {

enum class Space : std::uint8_t {
  input,    // the call's send buffer (equal to output where the call is in place)
  output,   // the call's recv buffer
  scratch,  // elements of the call's dtype
  partial   // scratch of the accumulation type: f32 for 16-bit floats, the call's dtype otherwise
};

// Elements [begin, begin + count) of a space.
struct Piece {
  Space space = Space::input;
  std::int64_t begin = 0, count = 0;
  friend bool operator==(const Piece&, const Piece&) = default;
};

enum class Verb : std::uint8_t {
  send,     // sources[0] to peer
  receive,  // target from peer
  copy,     // sources[0] to target, converting between dtype and partial
  reduce    // target = left fold of sources, in order; partial sources are not rounded on the way
};

struct Instruction {
  Verb verb = Verb::copy;
  int peer = -1;               // send, receive
  std::uint32_t ordinal = 0;   // send, receive: of this message from its sender to its receiver
  std::vector<Piece> sources;  // send, copy: one
  Piece target;                // receive, copy, reduce
  std::vector<int> after;      // instructions (smaller numbers) that must be finished first
  bool finish = false;         // reduce, copy into output: scale by 1/size for avg
};

// Instructions may run in any order that `after` allows; the executor starts them in this order.
// No two instructions that `after` leaves unordered touch the same elements, unless both read.
struct Program {
  std::int64_t scratch = 0, partial = 0;  // elements
  std::vector<Instruction> instructions;
};

}  // namespace shoal::collectives
