// One rule of a selection table, and its text.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/collectives/algorithm/choice.h"
#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives {

// unknown: rules that name a memory kind do not match.
enum class MemoryKind : std::uint8_t { host, symmetric, cuda, unknown };

struct Span {  // low <= x < high; high == kEnd: no upper bound
  static constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  std::int64_t low = 0, high = kEnd;
  bool holds(std::int64_t x) const { return x >= low && (x < high || high == kEnd); }
  friend bool operator==(const Span&, const Span&) = default;
};

inline constexpr double kAlways = std::numeric_limits<double>::infinity();

struct Rule {
  std::vector<Operation> operations;  // empty: all; a rule also applies to the _v form
  std::vector<MemoryKind> memory;     // empty: all
  Span bytes, ranks, nodes;
  Algorithm algorithm = Algorithm::automatic;  // automatic: all algorithms
  std::int64_t slice = 0;                      // bytes of a message; 0: the executor's default
  double score = kAlways;                      // 0: never
  friend bool operator==(const Rule&, const Rule&) = default;
};

// Throws invalid_argument, naming `source`, the rule, the field and the nearest valid word.
std::vector<Rule> parse_rules(std::string_view text, std::string_view source);
std::string to_string(const Rule& rule);  // parse_rules() reads it back

}  // namespace shoal::collectives
