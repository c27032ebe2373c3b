#include "shoal/collectives/algorithm/choice.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives {

std::string_view to_string(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic:
      return "automatic";
    case Algorithm::direct:
      return "direct";
    case Algorithm::ring:
      return "ring";
    case Algorithm::inlined:
      return "inline";
  }
  return "?";
}

Algorithm parse_algorithm(std::string_view text) {
  if (text.empty()) return Algorithm::automatic;
  if (text == "direct") return Algorithm::direct;
  if (text == "ring") return Algorithm::ring;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("'{}' is not an all_reduce algorithm of native", text),
              "use direct, ring or nothing (chosen by size)");
}

Algorithm choose_all_reduce(const AllReduceFacts& facts, std::int64_t inline_capacity) {
  if (facts.forced != Algorithm::automatic) return facts.forced;
  // Inlined, each rank reads all others' whole input: n times the bytes for one synchronisation
  // instead of two.
  const std::int64_t inline_limit =
      std::min(inline_capacity, std::int64_t{4096} / std::max(1, facts.ranks));
  if (facts.bytes <= inline_limit) return Algorithm::inlined;
  return Algorithm::direct;
}

}  // namespace shoal::collectives
