// Arguments of parallelize(): the plan, and the tools and memory of this rank.
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

// The plan is the same on every rank; the other members are this rank's own tools and memory.
struct ParallelOptions {
  ParallelPlan plan = {};
  // The modules to split, and their replacements; users add their own kinds (smp.tp_register).
  TensorParallelRegistry tensor_parallel = TensorParallelRegistry::defaults();
  OffloadOptions offload = {};
  // Pinned host memory for transfers to and from a device, including offloaded activations
  // (offload.pinned is set to it). It must also outlive the chain. Null: each user allocates its
  // own, which no statistics count.
  MemoryResource* pinned = nullptr;
  // The cost of each unit is measured on this microbatch, which has the form that train() gets
  // (measure_units(), one unit at a time). None: parameters are counted instead.
  std::optional<Microbatch> trace = {};
  ReducerOptions reducer = {};  // used without sharding
  // Sets the f32 value of one of this rank's parameters. If that is a part of a whole parameter,
  // Parameter::pieces() describes which. The function is called once per parameter, just before the
  // parameter is sharded and rounded. None: nn::materialize(). No rank ever holds more f32 values
  // than its masters and one parameter.
  std::function<void(nn::Parameter&)> fill = {};
  // With bf16 parameters: no f32 masters; all rules but SGD round their updates stochastically.
  // The random bits depend only on this seed and the element's position in the full model, so they
  // are the same in any layout.
  std::optional<std::uint64_t> rounding_seed = {};
  // Pinned host memory for the f32 masters of 16-bit values; device kernels read and write it in
  // place. It must outlive the object. With sharding it holds this rank's shard of the masters.
  // Null: masters are in the context's memory.
  MemoryResource* masters = nullptr;
  Tracer* tracer = nullptr;
  StepClock* clock = nullptr;  // counts the phases of training steps; may be null
};

}  // namespace shoal::parallel
