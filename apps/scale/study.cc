#include "study.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"

namespace shoal::app {
namespace {

void check_list(const char* name, const std::vector<std::int64_t>& list, std::int64_t least,
                std::int64_t most) {
  SHOAL_CHECK(!list.empty(), "{} is empty; give one number or more", name);
  for (const std::int64_t value : list)
    SHOAL_CHECK(value >= least && value <= most, "{} has {}; {} to {} are possible", name, value,
                least, most);
  std::vector<std::int64_t> sorted = list;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  SHOAL_CHECK(twice == sorted.end(), "{} has {} twice", name, *twice);
}

const StudyResult* find(const std::vector<StudyResult>& results, std::int64_t ranks,
                        std::int64_t workers, std::int64_t batch) {
  const auto found = std::find_if(results.begin(), results.end(), [&](const StudyResult& result) {
    return result.cell.ranks == ranks && result.cell.workers == workers &&
           result.cell.batch == batch;
  });
  return found == results.end() ? nullptr : &*found;
}

std::string percent(double share) {
  return std::isnan(share) ? "-" : fmt::format("{:+.0f} %", share * 100);
}

}  // namespace

std::string StudyCell::name() const {
  return fmt::format("ranks{}-workers{}-batch{}", ranks, workers, batch);
}

Study plan_study(const StudyOptions& o) {
  check_list("--ranks", o.ranks, 1, 4096);
  check_list("--workers", o.workers, 0, 1024);
  check_list("--batches", o.batches, 1, std::int64_t{1} << 20);
  std::int64_t all = 1, largest = 1;  // common multiple of all steps; samples of the largest step
  for (const std::int64_t ranks : o.ranks)
    for (const std::int64_t batch : o.batches) {
      const std::int64_t step = ranks * batch;
      all = std::lcm(all, step);
      SHOAL_CHECK(all <= std::int64_t{1} << 40,
                  "no number of examples below 10^12 suits all these ranks and batches in whole "
                  "steps; give fewer, or multiples of one another");
      largest = std::max(largest, step);
    }
  Study study;
  study.examples = o.examples;
  if (o.examples == 0) study.examples = (12 * largest + all - 1) / all * all;
  SHOAL_CHECK(study.examples > 0, "--examples is {}; it must be above 0", study.examples);
  if (study.examples % all != 0) {
    const std::int64_t below = study.examples / all * all;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} examples are not a whole number of steps in every run: steps take "
                            "up to {} samples",
                            study.examples, largest),
                fmt::format("give --examples {}{}", below > 0 ? fmt::format("{} or ", below) : "",
                            below + all));
  }
  for (const std::int64_t ranks : o.ranks)
    for (const std::int64_t batch : o.batches)
      for (const std::int64_t workers : o.workers) {
        const std::int64_t steps = study.examples / (ranks * batch);
        if (steps < 2)
          throw Error(ErrorCode::invalid_argument,
                      fmt::format("{} examples are one step on {} ranks with batches of {}",
                                  study.examples, ranks, batch),
                      fmt::format("give --examples {} or more", 2 * all));
        study.cells.push_back({ranks, workers, batch, steps});
      }
  return study;
}

std::vector<StudyRow> evaluate_study(const std::vector<StudyResult>& results) {
  std::vector<StudyRow> rows;
  for (const StudyResult& result : results) {
    StudyRow row{result, std::numeric_limits<double>::quiet_NaN(), 1};
    const StudyCell& cell = result.cell;
    if (const StudyResult* without = find(results, cell.ranks, 0, cell.batch))
      row.gain = result.samples_per_second / without->samples_per_second - 1;
    const StudyResult* fewest = &result;
    for (const StudyResult& other : results)
      if (other.cell.workers == cell.workers && other.cell.batch == cell.batch &&
          other.cell.ranks < fewest->cell.ranks)
        fewest = &other;
    row.efficiency = result.samples_per_second / static_cast<double>(cell.ranks) /
                     (fewest->samples_per_second / static_cast<double>(fewest->cell.ranks));
    rows.push_back(row);
  }
  return rows;
}

std::string study_table(const std::vector<StudyRow>& rows) {
  std::string text =
      fmt::format("{:>6} {:>8} {:>6} {:>12} {:>16} {:>11} {:>12}\n", "ranks", "workers", "batch",
                  "samples/s", "gain over 0", "efficiency", "stall share");
  for (const StudyRow& row : rows)
    text += fmt::format("{:>6} {:>8} {:>6} {:>12.1f} {:>16} {:>11.2f} {:>12.2f}\n",
                        row.result.cell.ranks, row.result.cell.workers, row.result.cell.batch,
                        row.result.samples_per_second,
                        row.result.cell.workers == 0 ? "" : percent(row.gain), row.efficiency,
                        row.result.stall_share);
  return text;
}

nlohmann::ordered_json study_json(const std::vector<StudyRow>& rows, std::int64_t examples) {
  nlohmann::ordered_json all = {{"examples", examples}, {"runs", nlohmann::ordered_json::array()}};
  for (const StudyRow& row : rows) {
    const StudyCell& cell = row.result.cell;
    nlohmann::ordered_json gain = nullptr;
    if (!std::isnan(row.gain)) gain = row.gain;
    all["runs"].push_back({{"ranks", cell.ranks},
                           {"workers", cell.workers},
                           {"batch", cell.batch},
                           {"steps", cell.steps},
                           {"samples_per_second", row.result.samples_per_second},
                           {"gain_over_0_workers", gain},
                           {"efficiency", row.efficiency},
                           {"loader_stall_share", row.result.stall_share}});
  }
  return all;
}

}  // namespace shoal::app
