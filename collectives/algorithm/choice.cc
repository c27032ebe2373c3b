#include "shoal/collectives/algorithm/choice.h"

#include <array>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"

namespace shoal::collectives {
namespace {

constexpr std::array kAlgorithms{Algorithm::direct,
                                 Algorithm::ring,
                                 Algorithm::inlined,
                                 Algorithm::halving_doubling,
                                 Algorithm::recursive_doubling,
                                 Algorithm::tree,
                                 Algorithm::chain,
                                 Algorithm::sharded,
                                 Algorithm::bruck,
                                 Algorithm::pairwise,
                                 Algorithm::dissemination,
                                 Algorithm::hierarchical};
constexpr std::array<std::string_view, 13> kNames{
    "automatic", "direct",  "ring",  "inline",   "halving_doubling", "recursive_doubling", "tree",
    "chain",     "sharded", "bruck", "pairwise", "dissemination",    "hierarchical"};
static_assert(kNames.size() == kAlgorithms.size() + 1);

}  // namespace

std::string_view to_string(Algorithm algorithm) {
  const auto number = static_cast<std::size_t>(algorithm);
  return number < kNames.size() ? kNames[number] : "?";
}

std::span<const Algorithm> all_algorithms() { return kAlgorithms; }

Algorithm parse_algorithm(std::string_view text) {
  if (text.empty() || text == "auto" || text == "automatic") return Algorithm::automatic;
  std::vector<std::string> names;
  for (const Algorithm algorithm : kAlgorithms) {
    if (text == to_string(algorithm)) return algorithm;
    names.emplace_back(to_string(algorithm));
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("'{}' is not an algorithm of collectives", text),
              names_there_are(text, names));
}

}  // namespace shoal::collectives
