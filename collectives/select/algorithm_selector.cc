#include "shoal/collectives/select/algorithm_selector.h"

#include <algorithm>
#include <array>
#include <sstream>

#include <fmt/ranges.h>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"

namespace shoal::collectives {
namespace {

template <typename Value>
bool fits(const std::vector<Value>& allowed, Value value) {
  return allowed.empty() || std::ranges::count(allowed, value) > 0;
}

bool fits(const Rule& rule, const SelectionFacts& facts) {
  return fits(rule.operations, base_operation(facts.operation)) &&
         fits(rule.memory, facts.memory) && rule.bytes.holds(facts.bytes) &&
         rule.ranks.holds(facts.ranks) && rule.nodes.holds(facts.nodes);
}

std::string read(const std::string& path, const std::string& source) {
  constexpr std::int64_t kMostBytes = 256 << 10;  // collective-tune writes a few KiB
  try {
    return read_text_file(path, kMostBytes);
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("{}: cannot read the table of algorithms: {}", source, error.message()),
                "@FILE needs a readable file; an algorithm is written @ring");
  }
}

}  // namespace

std::string rules_file(std::string_view rules) {
  if (!rules.starts_with('@') || rules.starts_with("@^") ||
      rules.find(':') != std::string_view::npos ||
      rules.find_first_of("#\n") != std::string_view::npos)
    return {};
  const auto name = rules.substr(1, rules.find('/') - 1);
  if (std::ranges::any_of(all_algorithms(),
                          [&](Algorithm algorithm) { return name == to_string(algorithm); }))
    return {};
  return std::string(rules.substr(1));
}

std::string rules_text(std::string_view option, const std::string& source) {
  const std::string path = rules_file(option);
  return path.empty() ? std::string(option) : read(path, source);
}

AlgorithmSelector::AlgorithmSelector() { add(default_table(), "built-in"); }

void AlgorithmSelector::add(std::string_view rules, std::string source) {
  const std::string path = rules_file(rules);
  const std::string text = path.empty() ? std::string(rules) : read(path, source);
  if (!path.empty()) source = path;
  for (Rule& rule : parse_rules(text, source)) rules_.push_back({std::move(rule), source});
}

Selection AlgorithmSelector::select(const SelectionFacts& facts,
                                    std::span<const Algorithm> offered) const {
  const Sourced* best = nullptr;
  Algorithm chosen = Algorithm::automatic;
  std::vector<std::string> exclusions;
  for (const Algorithm algorithm : offered) {
    const auto last = std::find_if(rules_.rbegin(), rules_.rend(), [&](const Sourced& sourced) {
      return (sourced.rule.algorithm == algorithm ||
              sourced.rule.algorithm == Algorithm::automatic) &&
             fits(sourced.rule, facts);
    });
    if (last == rules_.rend()) continue;
    if (last->rule.score == 0) {
      exclusions.push_back(fmt::format("{} ({})", to_string(last->rule), last->source));
      continue;
    }
    // Rules later in the table are later in memory.
    if (!best || last->rule.score > best->rule.score ||
        (last->rule.score == best->rule.score && &*last > best)) {
      best = &*last;
      chosen = algorithm;
    }
  }
  if (!best)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("no algorithm is left for {} of {} bytes, {} ranks, {} nodes: {}",
                            to_string(base_operation(facts.operation)), facts.bytes, facts.ranks,
                            facts.nodes,
                            exclusions.empty() ? "no rule speaks of one"
                                               : fmt::format("{}", fmt::join(exclusions, ", "))),
                "allow one in SHOAL_COLLECTIVES");
  return {chosen, best->rule.slice, fmt::format("{}: {}", best->source, to_string(best->rule))};
}

std::string AlgorithmSelector::print() const {
  std::string text;
  std::string_view source;
  for (const Sourced& sourced : rules_) {
    if (sourced.source != source) text += fmt::format("// {}\n", sourced.source);
    source = sourced.source;
    text += to_string(sourced.rule) + "\n";
  }
  return text;
}

std::vector<std::int64_t> AlgorithmSelector::borders() const {
  std::vector<std::int64_t> borders{0};
  for (const Sourced& sourced : rules_)
    for (const std::int64_t border : {sourced.rule.bytes.low, sourced.rule.bytes.high})
      if (border != Span::kEnd) borders.push_back(border);
  std::ranges::sort(borders);
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  return borders;
}

AlgorithmSelector make_selector(std::string_view option, int ranks_on_host) {
  AlgorithmSelector selector;
  if (ranks_on_host > 0) selector.add(shared_memory_rules(ranks_on_host), "built-in");
  const std::string environment = env::get_string(env::kCollectives);
  if (!environment.empty()) selector.add(environment, "SHOAL_COLLECTIVES");
  if (!option.empty()) selector.add(option, "option collectives");
  return selector;
}

std::span<const Algorithm> candidates(Operation operation) {
  static constexpr std::array kAllReduce{Algorithm::direct, Algorithm::ring,
                                         Algorithm::halving_doubling, Algorithm::recursive_doubling,
                                         Algorithm::tree};
  static constexpr std::array kReduceScatter{Algorithm::direct, Algorithm::ring,
                                             Algorithm::halving_doubling};
  static constexpr std::array kAllGather{Algorithm::direct, Algorithm::ring,
                                         Algorithm::halving_doubling, Algorithm::bruck};
  static constexpr std::array kBroadcast{Algorithm::tree, Algorithm::chain, Algorithm::sharded};
  static constexpr std::array kReduce{Algorithm::tree, Algorithm::chain, Algorithm::sharded,
                                      Algorithm::direct};
  static constexpr std::array kRooted{Algorithm::direct, Algorithm::tree};
  static constexpr std::array kAllToAll{Algorithm::direct, Algorithm::pairwise};
  static constexpr std::array kBarrier{Algorithm::dissemination};
  switch (base_operation(operation)) {
    case Operation::all_reduce:
      return kAllReduce;
    case Operation::reduce_scatter:
      return kReduceScatter;
    case Operation::all_gather:
      return kAllGather;
    case Operation::broadcast:
      return kBroadcast;
    case Operation::reduce:
      return kReduce;
    case Operation::gather:
    case Operation::scatter:
      return kRooted;
    case Operation::all_to_all:
      return kAllToAll;
    case Operation::barrier:
      return kBarrier;
    default:
      return {};
  }
}

std::span<const Algorithm> shared_memory_candidates(Operation operation) {
  static constexpr std::array kAllReduce{Algorithm::inlined, Algorithm::direct, Algorithm::ring};
  static constexpr std::array kOthers{Algorithm::inlined, Algorithm::direct};
  if (operation == Operation::all_reduce) return kAllReduce;
  if (operation == Operation::barrier || candidates(operation).empty()) return {};
  return kOthers;
}

std::span<const Algorithm> levelled_candidates(Operation operation) {
  static constexpr std::array kAllReduce{Algorithm::hierarchical,
                                         Algorithm::direct,
                                         Algorithm::ring,
                                         Algorithm::halving_doubling,
                                         Algorithm::recursive_doubling,
                                         Algorithm::tree};
  static constexpr std::array kReduceScatter{Algorithm::hierarchical, Algorithm::direct,
                                             Algorithm::ring, Algorithm::halving_doubling};
  static constexpr std::array kAllGather{Algorithm::hierarchical, Algorithm::direct,
                                         Algorithm::ring, Algorithm::halving_doubling,
                                         Algorithm::bruck};
  static constexpr std::array kBroadcast{Algorithm::hierarchical, Algorithm::tree, Algorithm::chain,
                                         Algorithm::sharded};
  static constexpr std::array kReduce{Algorithm::hierarchical, Algorithm::tree, Algorithm::chain,
                                      Algorithm::sharded, Algorithm::direct};
  switch (base_operation(operation)) {
    case Operation::all_reduce:
      return kAllReduce;
    case Operation::reduce_scatter:
      return kReduceScatter;
    case Operation::all_gather:
      return kAllGather;
    case Operation::broadcast:
      return kBroadcast;
    case Operation::reduce:
      return kReduce;
    default:
      return candidates(operation);
  }
}

std::span<const Algorithm> offered(Operation operation, int ranks, int nodes) {
  if (nodes == 1) return shared_memory_candidates(operation);
  return nodes < ranks ? levelled_candidates(operation) : candidates(operation);
}

}  // namespace shoal::collectives
