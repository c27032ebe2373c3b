// Plays the programs of all ranks in memory and holds them to what program.h promises. Elements
// are 64-bit words whose meaning is the Arithmetic's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shoal/collectives/algorithm/program.h"

namespace shoal::collectives {

using Element = std::uint64_t;

enum class Arithmetic {
  integers,   // sums modulo 2^64: with random inputs a wrong set of contributions shows
  f32,        // order shows
  bf16,       // and where sums are rounded
  expression  // combine(a, b) is a hash of (a, b): the whole expression shows
};
// What `finish` multiplies integers by, so that once is seen from never and twice.
inline constexpr Element kFinish = 0x9e3779b97f4a7c15u;
Element combine(Arithmetic arithmetic, Element a, Element b);  // in the accumulation type
// By the canonical tree as its definition has it (algorithm/canonical_tree.h).
Element canonical_sum(Arithmetic arithmetic, std::span<const Element> terms);
Element widen(Arithmetic arithmetic, Element element);   // dtype to accumulation type
Element narrow(Arithmetic arithmetic, Element element);  // and back

// One rank: its program and its memory, of which input and output are parts. In place they
// overlap. Elements of output that are not input may not be read before they are written.
struct PlayedRank {
  algorithm::Program program;
  std::vector<Element> memory;
  std::int64_t input_at = 0, inputs = 0, output_at = 0, outputs = 0;
};

struct PlayOrder {
  std::uint64_t seed = 0;  // 0: every rank in the order of its program; else as it falls
  bool eager = false;      // a send is finished without its receive
};

struct Played {
  std::vector<std::vector<Element>> outputs;     // by rank
  std::vector<std::int64_t> sent, sent_partial;  // elements of each type on the wire, by rank
  std::vector<int> messages;                     // sent, by rank
  std::vector<int> first_peer;                   // that the rank sends to; -1: none
  int steps = 0;                                 // messages on the longest chain
};

// Throws std::logic_error, saying where: two unordered instructions that touch the same elements
// (and not both read), elements read before they are written, writes beyond a buffer or into the
// input, messages that nobody receives or that differ in length or type, ordinals used twice,
// deadlock.
Played play(std::vector<PlayedRank> ranks, Arithmetic arithmetic, PlayOrder order);

}  // namespace shoal::collectives
