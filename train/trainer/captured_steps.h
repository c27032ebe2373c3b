// Runs steps, captured if the run wants that (nn/capture), on inputs in memory that graphs read
// again.
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
  // `context`: with `recorder` as its dispatcher, for the model that `plan` describes. `replayed`:
  // the mesh's world, null if it is not replayed. All arguments must outlive the object.
  CapturedSteps(const EngineParts& parts, const parallel::ParallelPlan& plan,
                const parallel::ProcessMesh& mesh, nn::Context& context, nn::StepRecorder& recorder,
                const parallel::ReplayedCommunicator* replayed)
      : parts_(parts),
        plan_(plan),
        mesh_(mesh),
        context_(context),
        recorder_(recorder),
        replayed_(replayed) {}

  // Why steps are not captured although the run wants that; empty: they are. The same on every
  // rank. With tensor parallelism, call it after the model is split.
  std::string why_not() const;
  // Captures steps from now on, unless why_not() has a reason. Small steps of one rank run weight
  // gradients beside backward.
  void begin();

  // On a device: copies the inputs of a step there, once, not at each use. `results`, if not null,
  // is waited for before inputs that steps still read are dropped.
  void upload(std::span<parallel::Microbatch> microbatches, StepResults* results);
  void drop_inputs() { staged_.clear(); }
  // Runs step.run, or replays its capture. step.abandon drops a run that failed in its capture; it
  // is called before another run.
  struct Step {
    std::function<void()> run, abandon;
  };
  void run(std::span<const parallel::Microbatch> microbatches, const Step& step);
  // A line for the log; empty: no step was captured.
  std::string describe();

  void begin_update() { updates_ = true; }  // called by a step that cannot be repeated any more

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
  // Inputs of steps by their shapes. Empty if kernels run on the host.
  std::map<std::string, nn::StagedInputs> staged_;
  // For captured steps of one rank, while its tensors fit into memory; otherwise null.
  std::unique_ptr<nn::WeightBranch> branch_;
  std::map<std::string, nn::MemorySequence> in_line_;  // by kind: memory without the branch
  std::string last_kind_;                              // of the last step
  nn::RecordedBatch last_batch_;                       // the first microbatch of the last step
  bool ran_beside_ = false;                            // the last step used the branch
  bool open_ = false;                                  // the last run failed before its end
  bool updates_ = false;                               // the last run has begun its update
  int captures_made_ = 0;                              // StepCaptures created so far
  std::unique_ptr<nn::StepCapture> capture_;           // null: steps run call by call
};

}  // namespace shoal
