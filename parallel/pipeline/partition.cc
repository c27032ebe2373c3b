#include "shoal/parallel/pipeline/partition.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal::parallel {
namespace {

void check(std::span<const UnitCost> units, const PartitionOptions& options) {
  if (options.memory_weight < 0 || options.memory_weight > 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("memory_weight is {}", options.memory_weight),
                "give a number from 0 (computation only) to 1 (memory only)");
  if (options.stages < 1 || static_cast<std::size_t>(options.stages) > units.size())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a model of {} units (blocks, with embeddings and head) cannot be cut "
                            "into {} stages",
                            units.size(), options.stages),
                fmt::format("use a pipeline_parallel_degree times virtual stages of at most {}",
                            units.size()));
  SHOAL_CHECK(options.microbatches_kept.empty() ||
                  options.microbatches_kept.size() == static_cast<std::size_t>(options.stages),
              "microbatches_kept has {} numbers for {} stages", options.microbatches_kept.size(),
              options.stages);
}

bool is_measured(std::span<const UnitCost> units) {
  return std::ranges::any_of(units, [](const UnitCost& unit) { return unit.seconds > 0; });
}

// Memory and time of every segment of units, and its cost as a stage.
class Costs {
 public:
  enum class Time { seconds, work };
  Costs(std::span<const UnitCost> units, const PartitionOptions& options, Time time)
      : options_(options), count_(units.size()), segments_(units.size() * units.size()) {
    // By unit: for each parameter, one plus the last earlier unit with it (0: none); its elements.
    std::vector<std::vector<std::pair<std::size_t, std::int64_t>>> parameters(count_);
    std::map<int, std::size_t> last;
    for (std::size_t unit = 0; unit < count_; ++unit)
      for (const auto& [number, elements] : units[unit].parameters) {
        parameters[unit].emplace_back(last[number], elements);
        last[number] = unit + 1;
      }
    for (std::size_t first = 0; first < count_; ++first) {
      Segment all;
      for (std::size_t unit = first; unit < count_; ++unit) {
        const UnitCost& one = units[unit];
        for (const auto& [before, elements] : parameters[unit])
          if (before <= first) all.parameters += elements;
        if (begins_group(static_cast<int>(unit), static_cast<int>(first), static_cast<int>(count_),
                         options.checkpoint_group))
          all.activation_bytes += static_cast<double>(one.activation_bytes);
        all.seconds += one.seconds;
        all.time += time == Time::seconds ? one.seconds : one.work;
        segments_[first * count_ + unit] = all;
      }
    }
  }
  std::size_t units() const { return count_; }

  // `all_bytes`: the memory of all stages together.
  StageCost of(UnitRange range, std::size_t stage, double all_bytes) const {
    const Segment& part = segment(range);
    StageCost cost{.parameters = part.parameters,
                   .microbatches = kept(stage),
                   .memory_bytes = bytes(range, stage),
                   .seconds = part.seconds};
    const double all_time = segment({0, static_cast<int>(count_)}).time;
    const double memory = all_bytes > 0 ? cost.memory_bytes / all_bytes : 0;
    const double time = all_time > 0 ? part.time / all_time : 0;
    // If memory or time is unknown, only the other one counts.
    const double weight = all_time <= 0 ? 1 : all_bytes <= 0 ? 0 : options_.memory_weight;
    cost.cost = weight * memory + (1 - weight) * time;
    return cost;
  }
  double bytes_of(std::span<const UnitRange> cut) const {
    double all = 0;
    for (std::size_t stage = 0; stage < cut.size(); ++stage) all += bytes(cut[stage], stage);
    return all;
  }
  double largest(std::span<const UnitRange> cut, double all_bytes) const {
    double most = 0;
    for (std::size_t stage = 0; stage < cut.size(); ++stage)
      most = std::max(most, of(cut[stage], stage, all_bytes).cost);
    return most;
  }
  // Bytes of the whole model, with the average number of microbatches that stages keep.
  double usual_bytes() const {
    double microbatches = 0;
    const auto stages = static_cast<std::size_t>(options_.stages);
    for (std::size_t stage = 0; stage < stages; ++stage) microbatches += kept(stage);
    const Segment& whole = segment({0, static_cast<int>(count_)});
    return static_cast<double>(whole.parameters) * options_.bytes_per_parameter +
           whole.activation_bytes * microbatches / options_.stages;
  }

 private:
  struct Segment {
    std::int64_t parameters = 0;  // elements; shared ones count once
    double activation_bytes = 0, seconds = 0, time = 0;
  };
  const Segment& segment(UnitRange range) const {
    return segments_[static_cast<std::size_t>(range.first) * count_ +
                     static_cast<std::size_t>(range.last) - 1];
  }
  int kept(std::size_t stage) const {
    return options_.microbatches_kept.empty() ? 1 : options_.microbatches_kept[stage];
  }
  double bytes(UnitRange range, std::size_t stage) const {
    const Segment& part = segment(range);
    return static_cast<double>(part.parameters) * options_.bytes_per_parameter +
           part.activation_bytes * kept(stage);
  }
  const PartitionOptions& options_;
  std::size_t count_;
  std::vector<Segment> segments_;  // by first unit, then last
};

Costs real_costs(std::span<const UnitCost> units, const PartitionOptions& options) {
  return {units, options, is_measured(units) ? Costs::Time::seconds : Costs::Time::work};
}

Partition with_costs(std::vector<UnitRange> stages, const Costs& costs) {
  Partition partition{std::move(stages), {}};
  const double all_bytes = costs.bytes_of(partition.stages);
  for (std::size_t stage = 0; stage < partition.stages.size(); ++stage)
    partition.costs.push_back(costs.of(partition.stages[stage], stage, all_bytes));
  return partition;
}

// The best cut, assuming that the memory of all stages totals `all_bytes`.
std::vector<UnitRange> best_cut_at(const Costs& costs, std::size_t stages, double all_bytes) {
  // best[s][j] is the best score of a cut of the first j units into s stages. A score is the
  // largest cost, then the sum of squared costs.
  using Score = std::pair<double, double>;
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const std::size_t n = costs.units();
  std::vector<std::vector<Score>> best(stages + 1, std::vector<Score>(n + 1, {kNever, kNever}));
  std::vector<std::vector<std::size_t>> from(stages + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = {0, 0};
  for (std::size_t s = 1; s <= stages; ++s)
    for (std::size_t i = s - 1; i + (stages - s) < n; ++i) {
      if (best[s - 1][i].first == kNever) continue;
      for (std::size_t j = i + 1; j + (stages - s) <= n; ++j) {
        const double cost =
            costs.of({static_cast<int>(i), static_cast<int>(j)}, s - 1, all_bytes).cost;
        const Score score{std::max(best[s - 1][i].first, cost),
                          best[s - 1][i].second + cost * cost};
        if (score < best[s][j]) {
          best[s][j] = score;
          from[s][j] = i;
        }
      }
    }
  std::vector<UnitRange> cut(stages);
  for (std::size_t s = stages, j = n; s > 0; j = from[s][j], --s)
    cut[s - 1] = {static_cast<int>(from[s][j]), static_cast<int>(j)};
  return cut;
}

// The total memory of all stages depends on the cut: early stages keep more microbatches, and each
// stage that reads a tied weight holds it. Dividing by each cut's own total would make waste look
// cheap. So one search uses one total for all cuts. The next search uses the total of the best cut
// found, until a cut repeats. If several cuts alternate, they differ little. Then the cut whose
// largest cost, relative to its own total, is smallest is taken.
std::vector<UnitRange> best_cut(const Costs& costs, std::size_t stages) {
  std::vector<std::vector<UnitRange>> seen;
  double all_bytes = costs.usual_bytes();
  while (true) {
    std::vector<UnitRange> cut = best_cut_at(costs, stages, all_bytes);
    const auto again = std::ranges::find(seen, cut);
    if (again != seen.end())
      return *std::min_element(again, seen.end(), [&](const auto& a, const auto& b) {
        return costs.largest(a, costs.bytes_of(a)) < costs.largest(b, costs.bytes_of(b));
      });
    all_bytes = costs.bytes_of(cut);
    seen.push_back(std::move(cut));
  }
}

// "h.3 to h.5"
std::string range_text(std::span<const UnitCost> units, const UnitRange& range) {
  const std::string& first = units[static_cast<std::size_t>(range.first)].name;
  const std::string& last = units[static_cast<std::size_t>(range.last) - 1].name;
  return range.last - range.first == 1 ? first : first + " to " + last;
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  return fmt::format("{:.1f} MB", bytes / 1e6);
}

}  // namespace

// Embeddings and head, at the ends, are never recomputed.
bool begins_group(int unit, int first, int units, int checkpoint_group) {
  if (checkpoint_group <= 0 || unit == 0 || unit == units - 1) return true;
  return (unit - std::max(first, 1)) % checkpoint_group == 0;
}

double Partition::largest() const {
  double most = 0;
  for (const StageCost& stage : costs) most = std::max(most, stage.cost);
  return most;
}

Partition partition_units(std::span<const UnitCost> units, const PartitionOptions& options) {
  check(units, options);
  const auto stages = static_cast<std::size_t>(options.stages);
  const Costs costs = real_costs(units, options);
  std::vector<UnitRange> best = best_cut(costs, stages);
  const auto has_work = [](const UnitCost& unit) { return unit.work > 0; };
  if (is_measured(units) && std::ranges::any_of(units, has_work)) {
    std::vector<UnitRange> steady = best_cut(Costs(units, options, Costs::Time::work), stages);
    const double all_bytes = costs.bytes_of(best);
    if (costs.largest(steady, all_bytes) <= (1 + kSteady) * costs.largest(best, all_bytes))
      best = std::move(steady);
  }
  return with_costs(std::move(best), costs);
}

Partition partition_by_counts(std::span<const UnitCost> units, std::string_view counts,
                              const PartitionOptions& options) {
  check(units, options);
  std::vector<int> each;
  std::int64_t all = 0;
  for (std::string_view rest = counts; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, comma);
    int count = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), count);
    if (error != std::errc() || end != word.data() + word.size() || count < 1)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("'{}' in the partition '{}' is no number of units", shortened(word),
                              shortened(counts)),
                  "write one number a stage, as in 4,3,2");
    each.push_back(count);
    all += count;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  if (all != std::ssize(units) || std::ssize(each) != options.stages)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the partition '{}' has {} units on {} stages, the model {} units on "
                            "{} stages",
                            shortened(counts), all, each.size(), units.size(), options.stages),
                "every unit belongs to one stage; embeddings and head are units too");
  std::vector<UnitRange> cut;
  for (int at = 0; const int count : each) {
    cut.push_back({at, at + count});
    at += count;
  }
  return with_costs(std::move(cut), real_costs(units, options));
}

Partition partition_by_assignment(std::span<const UnitCost> units,
                                  const std::map<std::string, int>& stage_of, int default_stage,
                                  const PartitionOptions& options) {
  check(units, options);
  std::vector<std::string> names;
  for (const UnitCost& unit : units) names.push_back(unit.name);
  for (const auto& [name, stage] : stage_of)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the model has no unit '{}'", shortened(name)),
                  names_there_are(name, names));
  std::vector<UnitRange> cut(static_cast<std::size_t>(options.stages));
  int before = 0;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const auto found = stage_of.find(names[unit]);
    const int stage = found == stage_of.end() ? default_stage : found->second;
    if (stage < 0 || stage >= options.stages)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("unit '{}' is assigned to partition {} of {}", names[unit], stage,
                              options.stages),
                  fmt::format("partitions are 0 to {}", options.stages - 1));
    if (stage < before)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("unit '{}' is on partition {}, though the unit before it is on {}",
                              names[unit], stage, before),
                  "a pipeline's partitions ascend along the model; assign its neighbours too");
    const int at = static_cast<int>(unit);
    UnitRange& range = cut[static_cast<std::size_t>(stage)];
    if (range.last == 0) range.first = at;
    range.last = at + 1;
    before = stage;
  }
  for (std::size_t stage = 0; stage < cut.size(); ++stage)
    if (cut[stage].last == 0)
      throw Error(ErrorCode::invalid_argument, fmt::format("partition {} has no units", stage),
                  "assign some to it, use fewer partitions, or set auto_partition");
  return with_costs(std::move(cut), real_costs(units, options));
}

std::string partition_table(const Partition& partition, std::span<const UnitCost> units,
                            std::span<const int> rank_of_stage) {
  std::string text =
      fmt::format("{:>5} {:>4}  {:<24} {:>12} {:>9} {:>10} {:>9} {:>6}\n", "stage", "pp", "units",
                  "parameters", "in flight", "memory", "time", "share");
  for (std::size_t stage = 0; stage < partition.stages.size(); ++stage) {
    const UnitRange& range = partition.stages[stage];
    const StageCost& cost = partition.costs[stage];
    text += fmt::format(
        "{:>5} {:>4}  {:<24} {:>12} {:>9} {:>10} {:>9} {:>5.1f}%\n", stage, rank_of_stage[stage],
        range_text(units, range), cost.parameters, cost.microbatches, bytes_text(cost.memory_bytes),
        cost.seconds > 0 ? fmt::format("{:.2f} ms", cost.seconds * 1e3) : "-", cost.cost * 100);
  }
  return text;
}

std::string unit_times(std::span<const UnitCost> units) {
  if (!is_measured(units)) return {};
  std::string text;
  const auto count = static_cast<int>(units.size());
  for (int first = 0, last = 0; first < count; first = last) {
    const double seconds = units[static_cast<std::size_t>(first)].seconds;
    while (last < count && units[static_cast<std::size_t>(last)].seconds == seconds) ++last;
    text +=
        fmt::format("{}{} {:.2f} ms{}", first == 0 ? "" : ", ", range_text(units, {first, last}),
                    seconds * 1e3, last - first > 1 ? " each" : "");
  }
  return text;
}

}  // namespace shoal::parallel
