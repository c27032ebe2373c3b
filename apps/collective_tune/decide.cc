#include "decide.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

namespace shoal::tune {
namespace {

constexpr double kAlike = 0.01;
constexpr double kMostRounds = 0.75;

auto order_of(const Gain& gain) {
  return std::tuple(gain.nodes, gain.ranks, static_cast<int>(gain.operation),
                    gain.memory ? static_cast<int>(*gain.memory) : -1, gain.bytes);
}

}  // namespace

std::string to_string(const Choice& choice) {
  if (choice.algorithm == Algorithm::automatic) return "default";
  collectives::Rule rule;
  rule.algorithm = choice.algorithm;
  rule.slice = choice.slice;
  const std::string text = collectives::to_string(rule);
  return text.substr(text.find('@') + 1);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::optional<std::size_t> winner(const std::vector<Timed>& candidates, double margin) {
  const Timed& usual = candidates.front();
  const double limit = median(usual.seconds) * (1 - margin);
  std::optional<std::size_t> best;
  double least = limit;
  for (std::size_t c = 1; c < candidates.size(); ++c) {
    const auto& seconds = candidates[c].seconds;
    std::size_t won = 0;
    for (std::size_t r = 0; r < seconds.size(); ++r) won += seconds[r] < usual.seconds[r];
    const double own = median(seconds);
    const bool steady =
        static_cast<double>(won) >= kMostRounds * static_cast<double>(seconds.size());
    if (!steady || own > limit || (best && own > least * (1 - kAlike))) continue;
    best = c;
    least = own;
  }
  return best;
}

std::vector<collectives::Rule> rules_of(const std::vector<Gain>& gains,
                                        const std::vector<std::int64_t>& sizes) {
  std::vector<Gain> sorted = gains;
  std::ranges::sort(sorted, {}, order_of);
  std::vector<collectives::Rule> rules;
  const Gain* before = nullptr;
  for (const Gain& gain : sorted) {
    const auto place = std::ranges::find(sizes, gain.bytes);
    const bool last = place == sizes.end() || place + 1 == sizes.end();
    const std::int64_t end = last ? 2 * gain.bytes : *(place + 1);
    const bool goes_on = before && before->operation == gain.operation &&
                         before->memory == gain.memory && before->ranks == gain.ranks &&
                         before->nodes == gain.nodes && before->choice == gain.choice &&
                         rules.back().bytes.high == gain.bytes;
    before = &gain;
    if (goes_on) {
      rules.back().bytes.high = end;
      continue;
    }
    collectives::Rule rule;
    rule.operations = {gain.operation};
    if (gain.memory) rule.memory = {*gain.memory};
    rule.bytes = {place == sizes.begin() ? 0 : gain.bytes, end};
    rule.ranks = {gain.ranks, gain.ranks + 1};
    rule.nodes = {gain.nodes, gain.nodes + 1};
    rule.algorithm = gain.choice.algorithm;
    rule.slice = gain.choice.slice;
    rules.push_back(std::move(rule));
  }
  return rules;
}

}  // namespace shoal::tune
