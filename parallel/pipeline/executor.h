// Runs one rank's list of a schedule: computes on its stages, and sends and receives between
// stages. It does not depend on models or tapes.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/parallel/pipeline/schedule.h"
#include "shoal/parallel/pipeline/stage.h"
#include "shoal/runtime/trace/step_clock.h"
#include "shoal/runtime/trace/trace.h"

namespace shoal::parallel {

struct PipelineStatistics {
  double seconds = 0;          // in all calls of run()
  double compute_seconds = 0;  // part of `seconds`: computing in the stages
  double wait_seconds = 0;     // part of `seconds`: waiting for messages
  std::int64_t messages = 0;   // sent
  std::int64_t message_bytes = 0;
};

class PipelineExecutor {
 public:
  // `stages`: this rank's stages of the schedule, by number; any other set is refused. `pp`: the
  // ranks of the pipeline, in the schedule's order. All arguments must outlive the executor.
  // `tracer` may be null.
  //
  // `horizon`: announce a backward to its stage this many computations ahead (SMP's
  // activation_loading_horizon, in pipeline tasks); 0: never.
  //
  // `abort`: tells the other ranks that a step failed with this error, and must not throw. It
  // returns false if it told no rank, because the step was only being captured and no work has
  // begun. Without `abort`, run() calls pp.abort(), which does not reach ranks outside the
  // pipeline.
  //
  // `clock`, which may be null: counts run() as forward, backward, pipeline_wait and communication.
  using Abort = std::function<bool(const std::exception& why)>;
  PipelineExecutor(const Schedule& schedule, collectives::Communicator& pp,
                   std::map<int, Stage*> stages, Tracer* tracer = nullptr, int horizon = 0,
                   Abort abort = {}, StepClock* clock = nullptr);

  // Runs the list once. Blocks until this rank's work is done and its sends have completed; on a
  // device pp's stream waits instead. Collective over `pp`, whose sends and receives belong to this
  // call. `after_last_forward` is called once, after this rank's last forward (gradients become
  // complete from then on); may be empty. Throws errors of the stages and the communicator. In that
  // case every rank abandons the step (`abort`), and its messages no longer touch memory.
  void run(const std::function<void()>& after_last_forward = {});

  const Schedule& schedule() const { return schedule_; }
  const PipelineStatistics& statistics() const { return statistics_; }

 private:
  using Key = std::pair<int, int>;  // stage, microbatch
  struct Arriving {
    Tensor tensor;
    collectives::WorkPtr work;
  };
  struct Leaving {
    Tensor tensor;
    collectives::WorkPtr work;
    bool forward = false;
    Key from = {};
  };
  void look_ahead(std::size_t from);
  void perform(const Action& action);
  void compute(const Action& action);
  void send(const Action& action);
  void receive(const Action& action);
  Tensor take(std::map<Key, Arriving>& from, const Key& key);
  void deliver(bool forward, int from_stage, int microbatch, Tensor tensor);
  void drop_what_left();
  void drop_output(const Key& key);
  void give_up(const std::exception& why) noexcept;
  Stage& stage(int number) const { return *stages_.at(number); }

  Schedule schedule_;
  collectives::Communicator& pp_;
  std::map<int, Stage*> stages_;
  Tracer* tracer_;
  int horizon_;
  Abort abort_;
  StepClock* clock_;
  // Keyed by the receiving stage: tensors received, or handed over by another stage of this rank.
  std::map<Key, Arriving> inputs_, gradients_;
  // Keyed by the producing stage: tensors waiting for their SEND.
  std::map<Key, Tensor> outputs_, input_gradients_;
  std::vector<Leaving> leaving_;
  PipelineStatistics statistics_;
};

}  // namespace shoal::parallel
