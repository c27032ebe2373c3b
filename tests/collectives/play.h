// Simulates the programs of all ranks in memory and checks the guarantees of program.h. Elements
// are 64-bit words that Arithmetic interprets.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shoal/collectives/algorithm/program.h"

namespace shoal::collectives {

using Element = std::uint64_t;

enum class Arithmetic {
  integers,   // sums modulo 2^64: random inputs reveal a wrong set of contributions
  f32,        // reveals the order
  bf16,       // also reveals where sums are rounded
  expression  // combine(a, b) is a hash of (a, b): reveals the whole expression
};
// `finish` multiplies integers by this, so a missing or repeated finish is visible.
inline constexpr Element kFinish = 0x9e3779b97f4a7c15u;
Element combine(Arithmetic arithmetic, Element a, Element b);  // in the accumulation type
// The sum by the canonical tree, computed from the tree's definition (algorithm/canonical_tree.h).
Element canonical_sum(Arithmetic arithmetic, std::span<const Element> terms);
Element widen(Arithmetic arithmetic, Element element);   // dtype to accumulation type
Element narrow(Arithmetic arithmetic, Element element);  // and back

// One rank's program and memory. Input and output are parts of the memory and overlap in place.
// Elements of output outside the input may not be read before they are written.
struct PlayedRank {
  algorithm::Program program;
  std::vector<Element> memory;
  std::int64_t input_at = 0, inputs = 0, output_at = 0, outputs = 0;
};

struct PlayOrder {
  std::uint64_t seed = 0;  // 0: each rank runs in program order; else a random order
  bool eager = false;      // a send finishes before its receive
};

struct Played {
  std::vector<std::vector<Element>> outputs;     // by rank
  std::vector<std::int64_t> sent, sent_partial;  // elements of each type sent, by rank
  std::vector<int> messages;                     // messages sent, by rank
  std::vector<int> first_peer;                   // the first rank it sends to; -1: none
  int steps = 0;                                 // messages on the longest chain
};

// Simulates the ranks. Throws std::logic_error with the position of an error:
// - unordered instructions that access the same elements, at least one of them writing;
// - elements read before they are written, and writes outside a buffer or into the input;
// - messages without a receiver, or with another length or type at the receiver;
// - reused ordinals, and deadlock.
Played play(std::vector<PlayedRank> ranks, Arithmetic arithmetic, PlayOrder order);

}  // namespace shoal::collectives
