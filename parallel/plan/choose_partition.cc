// Cuts a model into stages as a plan describes; reads and writes the partition file.
#include <algorithm>

#include <nlohmann/json.hpp>

#include "shoal/parallel/pipeline/generate.h"
#include "shoal/parallel/pipeline/partition.h"
#include "shoal/parallel/pipeline/simulate.h"
#include "shoal/parallel/plan/parallel_plan.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::parallel {
namespace {

std::vector<std::string> names_of(std::span<const UnitCost> units) {
  std::vector<std::string> names;
  for (const UnitCost& unit : units) names.push_back(unit.name);
  return names;
}

// "5,4,3" from the names of the stages' first units.
std::string counts_from(std::span<const std::string> first_units, std::span<const UnitCost> units) {
  const std::vector<std::string> names = names_of(units);
  std::vector<std::size_t> begins;
  for (const std::string& name : first_units) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("manual_partition: the model has no unit '{}'", shortened(name)),
                  names_there_are(name, names));
    begins.push_back(static_cast<std::size_t>(found - names.begin()));
    if (begins.size() == 1 && begins[0] != 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("manual_partition begins with unit '{}'", name),
                  fmt::format("the first stage begins with the model, at '{}'", names[0]));
    if (begins.size() > 1 && begins.back() <= begins[begins.size() - 2])
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("manual_partition: unit '{}' does not come after '{}' in the model",
                              name, names[begins[begins.size() - 2]]),
                  "give the stages' first units in the order of the model");
  }
  begins.push_back(units.size());
  std::string counts;
  for (std::size_t stage = 0; stage + 1 < begins.size(); ++stage)
    counts += fmt::format("{}{}", stage == 0 ? "" : ",", begins[stage + 1] - begins[stage]);
  return counts;
}

std::string counts_from_file(const std::string& path, std::span<const UnitCost> units) {
  if (!path_exists(path))
    throw Error(ErrorCode::not_found,
                fmt::format("load_partition is true, and there is no partition_file {}", path),
                "a run with load_partition false writes it; every rank must see it");
  const nlohmann::json json = read_json_file(path);
  const std::string name = "the partition " + path;
  const auto names = need_field<std::vector<std::string>>(json, "units", name);
  const auto counts = need_field<std::vector<int>>(json, "stages", name);
  if (names != names_of(units))
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} is the partition of a model of {} units, this one has {}, or others", path,
                    names.size(), units.size()),
        "load_partition reads what was written for the same model");
  return fmt::format("{}", fmt::join(counts, ","));
}

}  // namespace

ScheduleOptions schedule_options(const ParallelPlan& plan, bool forward_only) {
  return {.kind = plan.pipeline.schedule,
          .ranks = plan.mesh.pipeline,
          .microbatches = plan.pipeline.microbatches,
          .chunks = plan.pipeline.chunks,
          .active_microbatches = plan.pipeline.active_microbatches,
          .forward_only = forward_only};
}

Partition choose_partition(const ParallelPlan& plan, std::span<const UnitCost> units,
                           double bytes_per_parameter, const Schedule* schedule) {
  const PartitionChoice& choice = plan.pipeline.partition;
  const ScheduleOptions wanted = schedule_options(plan);
  const PartitionOptions options{.stages = wanted.stages(),
                                 .memory_weight = choice.memory_weight,
                                 .bytes_per_parameter = bytes_per_parameter,
                                 .microbatches_kept = microbatches_kept(
                                     schedule != nullptr ? *schedule : make_schedule(wanted)),
                                 .checkpoint_group = plan.activations.checkpoint_group};
  if (choice.load) return partition_by_counts(units, counts_from_file(choice.file, units), options);
  if (!choice.counts.empty()) return partition_by_counts(units, choice.counts, options);
  if (!choice.first_units.empty())
    return partition_by_counts(units, counts_from(choice.first_units, units), options);
  if (choice.by_hand)
    return partition_by_assignment(units, choice.stage_of, choice.default_partition, options);
  return partition_units(units, options);
}

void write_partition(const std::string& path, const Partition& partition,
                     std::span<const UnitCost> units) {
  std::vector<int> counts;
  for (const UnitRange& stage : partition.stages) counts.push_back(stage.last - stage.first);
  const nlohmann::ordered_json json = {{"units", names_of(units)}, {"stages", counts}};
  write_file_atomically(path, json.dump(2) + "\n");
}

}  // namespace shoal::parallel
