// Parsers of parallel: plans, partitions, machines and traces.
#include <string>
#include <vector>

#include "fuzz/frame.h"
#include <nlohmann/json.hpp>

#include "shoal/parallel/mesh/placement.h"
#include "shoal/parallel/pipeline/partition.h"
#include "shoal/parallel/pipeline/schedule_kind.h"
#include "shoal/parallel/plan/parallel_plan.h"
#include "shoal/parallel/plan/smp_parameters.h"
#include "shoal/parallel/predict/machine.h"
#include "shoal/parallel/predict/spot/replay.h"
#include "shoal/parallel/predict/spot/trace.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"

namespace shoal::fuzz {
namespace {

using namespace parallel;

FUZZ(smp_parameters,
     "parallel/plan/smp_parameters.cc parallel/plan/smp_keys.cc parallel/plan/plan_json.cc",
     .lists_problems = true) {
  const bool pytorch = input.choice(2) == 1;
  const SmpParameters read =
      parse_smp_parameters(parse_json(input.rest(), "f"), {.pytorch = pytorch});
  if (pytorch) return;
  const auto written = parse_json(plan_json(read.plan).dump(), "plan");
  expect(parse_smp_parameters(written).plan == read.plan, "a written plan reads as the same plan");
}

std::vector<UnitCost> units() {
  std::vector<UnitCost> all;
  for (const char* name : {"embeddings", "h.0", "h.1", "h.2", "h.3", "head"})
    all.push_back({.name = name,
                   .parameters = {{static_cast<int>(all.size()), 100}},
                   .activation_bytes = 10,
                   .peak_bytes = 20,
                   .seconds = 1e-3});
  return all;
}

// A partition file, units of each stage, a placement and a schedule.
FUZZ(plan_words,
     "parallel/plan/choose_partition.cc parallel/pipeline/partition.cc parallel/mesh/placement.cc "
     "parallel/pipeline/generate.cc") {
  const std::string file(input.part()), counts(input.part()), placement(input.part()),
      schedule(input.part());
  ParallelPlan plan;
  plan.mesh.pipeline = 2;
  plan.pipeline.microbatches = 2;
  for (const bool load : {true, false}) try {
      plan.pipeline.partition = {.counts = load ? "" : counts, .load = load};
      if (load) plan.pipeline.partition.file = input.file("partition.json", file);
      const Partition partition = choose_partition(plan, units());
      expect(partition.stages.size() == 2 && partition.stages.back().last == 6,
             "the stages hold all units");
    } catch (const Error& error) {
      expect(error.code() != ErrorCode::internal, error.what());
    }
  try {
    (void)placement_table({.rdp = 2, .pp = 2, .tp = 2}, Placement(placement));
  } catch (const Error& error) {
    expect(error.code() == ErrorCode::invalid_argument, error.what());
  }
  (void)parse_schedule_kind(schedule);
}

FUZZ(machine, "parallel/predict/machine.cc") {
  const Machine machine = read_machine(parse_json(input.rest(), "f"), "f");
  for (const std::int64_t tokens : {1, 100, 1'000'000}) (void)machine.block_factor(768, 1, tokens);
}

FUZZ(spot_trace, "parallel/predict/spot/trace.cc parallel/predict/spot/replay.cc") {
  const SpotTrace trace = read_spot_trace(input.file("trace.json", input.rest()));
  const double share = availability(trace, 2).share;
  expect(share >= 0 && share <= 1, "a share is 0 to 1");
}

}  // namespace
}  // namespace shoal::fuzz
