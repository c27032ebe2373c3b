// Runs one rank's list of a schedule: computes on its stages, sends and receives between them. It
// knows neither models nor tapes.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "shoal/collectives/communicator.h"
#include "shoal/parallel/pipeline/schedule.h"
#include "shoal/parallel/pipeline/stage.h"
#include "shoal/runtime/trace/trace.h"

namespace shoal::parallel {

struct PipelineStatistics {
  double seconds = 0;          // in run(), all of them
  double compute_seconds = 0;  // of these, in the stages
  double forward_seconds = 0;  // of the stages'
  double wait_seconds = 0;     // of these, waiting for messages
  std::int64_t messages = 0;   // sent
  std::int64_t message_bytes = 0;
};

class PipelineExecutor {
 public:
  // `stages`: those that the schedule gives this rank, by number; refused otherwise. `pp`: the
  // pipeline's ranks, in the order of the schedule's. All outlive the executor. `tracer` may be
  // null. `horizon`: how many computations ahead a stage is told of a backward (SMP's
  // activation_loading_horizon, counted in pipeline tasks); 0: never. `abort`: tells other ranks
  // that a step ends with this, and throws nothing; false: it does not, for nothing of it has begun
  // (a step that is captured). None: pp.abort(), which ranks outside the pipeline do not hear.
  // `captured`: steps are (nn::StepCapture), so when a message's memory goes hangs on no time: an
  // output's when its gradient has come, a gradient's at the end.
  using Abort = std::function<bool(const std::exception& why)>;
  PipelineExecutor(const Schedule& schedule, collectives::Communicator& pp,
                   std::map<int, Stage*> stages, Tracer* tracer = nullptr, int horizon = 0,
                   Abort abort = {}, bool captured = false);

  // Runs the list once. Blocks until this rank's work is done and its sends have left; on a device
  // pp's stream does. Collective
  // over `pp`, whose sends and receives belong to this call. `after_last_forward` is called once,
  // when no forward of this rank is left (gradients become complete from then on); may be empty.
  // Throws what a stage or the communicator throws. The step is then given up on every rank
  // (`abort`), and what was in flight touches memory no more.
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
  void hand_on(bool forward, int from_stage, int microbatch, Tensor tensor);
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
  const bool captured_;
  // By the stage that needs it, received or from a stage of this rank.
  std::map<Key, Arriving> inputs_, gradients_;
  // By the stage that made it, until its SEND.
  std::map<Key, Tensor> outputs_, input_gradients_;
  std::vector<Leaving> leaving_;
  PipelineStatistics statistics_;
};

}  // namespace shoal::parallel
