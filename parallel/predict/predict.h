// Predicts a step of a plan: its time by part, and what each rank keeps between two steps. Pure; it
// uses the schedules, the simulator, the partitioner and the state formulas of the runtime.
//
//   const Prediction prediction = predict({.model = shape, .machine = find_machine("p4d.24xlarge"),
//                                          .plan = plan, .run = {.ranks = 16, .batch = 8,
//                                                                .length = 1024}});
//   prediction.seconds;   // of a step
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shoal/parallel/apply/layout_memory.h"
#include "shoal/parallel/pipeline/simulate.h"
#include "shoal/parallel/plan/legality.h"
#include "shoal/parallel/plan/parallel_plan.h"
#include "shoal/parallel/predict/machine.h"
#include "shoal/parallel/predict/model_shape.h"

namespace shoal::parallel {

struct PredictionRequest {
  const ModelShape& model;
  const Machine& machine;
  const ParallelPlan& plan;
  RunShape run;  // `length` must be known
};

// Seconds of a step of the slowest rank, by part; together Prediction::seconds.
struct StepParts {
  double products = 0, attention = 0, passes = 0, loss = 0;
  double tensor_exchanges = 0;  // sums of activations over tensor-parallel ranks
  double recomputation = 0;     // of checkpointed blocks
  double launches = 0;          // by which the host is slower than the device
  double bubble = 0;            // a pipeline's idle time, messages included
  double gradients = 0;         // exposed time of the gradients' sums
  double optimizer = 0, fixed = 0;
};

// ("attention", seconds) and so on, in the order above, for people.
std::vector<std::pair<const char*, double>> named_parts(const StepParts& parts);

struct StagePrediction {
  std::string units;                 // "embeddings to h.5"
  double forward = 0, backward = 0;  // seconds for one microbatch
  StateMemory state;                 // bytes on one of its ranks
};

// A pipeline rank's step by phases, as StepClock counts them, and its memory.
struct RankPrediction {
  double forward = 0, backward = 0;  // seconds; the loss computes its gradients in forward
  double waits = 0;                  // for messages and for other stages
  StateMemory state;                 // bytes between two steps
  double activations = 0;            // bytes at their peak
};

struct Prediction {
  double seconds = 0;
  StepParts parts;
  std::vector<StagePrediction> stages;
  std::vector<RankPrediction> ranks;  // by pipeline rank
  double samples_per_second = 0, tokens_per_second = 0;
  // Model FLOP of a step over the machine's stated rate: mfu without, hfu with recomputation.
  double mfu = 0, hfu = 0;
  // Bytes of the fullest rank: state, and activations at their peak. Workspaces are not included.
  double memory = 0, activations = 0;
  double block_seconds = 0;     // of `seconds`, what changes with the machine's BlockFactors
  double dollars_per_step = 0;  // 0: no price is known
  std::string limit;            // the largest part after the products, and its share
};

// Whether a run of the model could have the plan (find_problems()).
bool is_legal(const ModelShape& model, const ParallelPlan& plan, const RunShape& run);
// Throws invalid_argument with every problem if the plan is not legal (find_problems()).
Prediction predict(const PredictionRequest& request);

// A step in three costs of looking at it, for callers that compare many layouts.
class StepModel {
 public:
  // The plan must be legal. `schedule`: what make_schedule() gives for it; null: it is made here.
  // It depends on neither model nor machine, except for ScheduleKind::interleaved. The request's
  // references must outlive the StepModel.
  explicit StepModel(const PredictionRequest& request, const Schedule* schedule = nullptr);
  ~StepModel();
  double memory() const;         // Prediction::memory
  double least_seconds() const;  // a bound below Prediction::seconds, without simulate()
  Prediction predict() const;
  // When each action of the pipeline runs, in seconds.
  struct Timeline {
    Schedule schedule;
    Simulation simulation;
  };
  Timeline timeline() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::parallel
