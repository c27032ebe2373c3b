// Runs training steps. If the run uses step capture (nn/capture), captures them and keeps their
// inputs in device memory that graph replays read again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "shoal/nn/autograd/context.h"
#include "shoal/nn/autograd/weight_branch.h"
#include "shoal/nn/capture/batch_size.h"
#include "shoal/nn/capture/staged_inputs.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/parallel/mesh/process_mesh.h"
#include "shoal/parallel/pipeline/chain_stage.h"
#include "shoal/parallel/plan/parallel_plan.h"
#include "shoal/parallel/replay/replayed_communicator.h"
#include "shoal/train/trainer/engine_parts.h"
#include "shoal/train/trainer/step_results.h"

namespace shoal {

// True if the arguments ask for captured steps and the run has memory for them.
bool wants_capture(const EngineParts& parts);

class CapturedSteps {
 public:
  // `context` must use `recorder` as its dispatcher. `plan` describes the model. `replayed`: the
  // mesh's world communicator if graphs replay its operations, otherwise null. All arguments must
  // outlive the object.
  CapturedSteps(const EngineParts& parts, const parallel::ParallelPlan& plan,
                const parallel::ProcessMesh& mesh, nn::Context& context, nn::StepRecorder& recorder,
                const parallel::ReplayedCommunicator* replayed)
      : parts_(parts),
        plan_(plan),
        mesh_(mesh),
        context_(context),
        recorder_(recorder),
        replayed_(replayed) {}

  // The reason why steps are not captured although the run asks for it; empty: they are captured.
  // The same on every rank. With tensor parallelism, call it after the model is split.
  std::string why_not() const;
  // Captures steps from now on, unless why_not() has a reason. With one rank, small steps compute
  // weight gradients on a second stream during backward.
  void begin();

  // On a device: copies a step's inputs there once, before all uses. If `results` is not null,
  // waits for it before dropping inputs that queued steps still read.
  void upload(std::span<parallel::Microbatch> microbatches, StepResults* results);
  void drop_inputs() { staged_.clear(); }
  // Calls step.run, or replays its capture. If step.run fails during capture, step.abandon discards
  // that run before the next call of step.run.
  struct Step {
    std::function<void()> run, abandon;
  };
  void run(std::span<const parallel::Microbatch> microbatches, const Step& step);
  // A line for the log; empty: no step was captured.
  std::string describe();

  void begin_update() { updates_ = true; }  // a step calls this once it can no longer be repeated

 private:
  bool on_device() const { return !context_.kernels().device().is_cpu(); }
  bool reads_on_host() const;
  std::string kind_of(std::span<const parallel::Microbatch> microbatches) const;
  bool run_with_branch(const std::string& kind, std::span<const parallel::Microbatch> microbatches,
                       const Step& step, const std::function<void()>& run);
  void abandon(const Step& step);
  void begin_capture();

  const EngineParts& parts_;
  const parallel::ParallelPlan& plan_;
  const parallel::ProcessMesh& mesh_;
  nn::Context& context_;
  nn::StepRecorder& recorder_;
  const parallel::ReplayedCommunicator* replayed_;
  // Step inputs by shape. Empty if kernels run on the host.
  std::map<std::string, nn::StagedInputs> staged_;
  // Second stream for the weight gradients of captured steps. Null with several ranks, or if its
  // tensors do not fit into memory.
  std::unique_ptr<nn::WeightBranch> branch_;
  std::map<std::string, nn::MemorySequence> in_line_;  // by kind: memory of a step without branch_
  std::string last_kind_;                              // of the last step
  nn::RecordedBatch last_batch_;                       // the first microbatch of the last step
  bool ran_beside_ = false;                            // the last step used branch_
  bool open_ = false;                                  // the last run failed before its end
  bool updates_ = false;                               // the last run has begun its update
  int captures_made_ = 0;                              // StepCaptures created so far
  std::unique_ptr<nn::StepCapture> capture_;           // null: steps run call by call
};

}  // namespace shoal
