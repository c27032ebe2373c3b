// What parallelize() is given: the plan, and the tools and memory of this rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "shoal/parallel/data/reducer.h"
#include "shoal/parallel/pipeline/chain_stage.h"
#include "shoal/parallel/pipeline/executor.h"
#include "shoal/parallel/plan/parallel_plan.h"
#include "shoal/parallel/tensor/replace.h"

namespace shoal::parallel {

// What a rank is given beside the plan: its own tools and memory. A plan is the same on every rank.
struct ParallelOptions {
  ParallelPlan plan = {};
  // Which modules are cut, and how; a user's own kinds are added (smp.tp_register).
  TensorParallelRegistry tensor_parallel = TensorParallelRegistry::defaults();
  OffloadOptions offload = {};
  // Pinned host memory for what is on its way to or from a device, activations that leave among it
  // (offload.pinned is set to it); null: their own, that nobody counts. Outlives the chain, too.
  MemoryResource* pinned = nullptr;
  // What each unit costs is measured on this microbatch of this rank's, as train() gets them
  // (measure_units(): a unit at a time); none: parameters are counted.
  std::optional<Microbatch> trace = {};
  ReducerOptions reducer = {};  // where nothing is sharded
  // Gives a parameter of this rank its f32 value (of a part: Parameter::pieces()), once for each,
  // just before it is cut and rounded; none: nn::materialize(). No rank ever holds more in f32 than
  // its masters and one parameter.
  std::function<void(nn::Parameter&)> fill = {};
  // Of bf16: no f32 masters. What AdamW or LAMB updates is rounded stochastically, by bits that
  // this seed and an element's place in the whole model decide: the same ones in any layout.
  std::optional<std::uint64_t> rounding_seed = {};
  // Where f32 masters of 16-bit values lie, if not in the context's memory: pinned memory of the
  // host, which a device's kernels read and write in place. Outlives the object; with sharding a
  // rank's shard of them is there.
  MemoryResource* masters = nullptr;
  // Steps are captured, or planned (nn::StepCapture): what one does and allocates, and in which
  // order, hangs on no time, and it leaves nothing under way. On a device the mesh is made for it.
  bool captured = false;
  Tracer* tracer = nullptr;
};

}  // namespace shoal::parallel
