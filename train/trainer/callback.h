// Hooks on the trainer's events. They are called on every rank, from the training thread, in the
// order in which callbacks were added. An exception ends training.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace shoal {

struct TrainerState;

// Requests of a callback; the trainer reads them after on_step_end. Every rank must make the same
// requests.
struct TrainerControl {
  bool should_save = false, should_evaluate = false, should_stop = false;
};

struct StepReport {
  std::int64_t step = 0, total_steps = 0;  // updates done so far; updates of the whole run
  // False: the step runs on a device and the host has not waited for it. Loss and norm are then
  // NaN, and the learning rate assumes that no step was skipped since the last one with known
  // results (see TrainerCallback::needs_every_step()).
  bool known = true;
  double loss = 0;  // mean over the step's targets, all ranks
  // If updates run during the next forward (ddp_overlap_forward), the norm is NaN except in steps
  // that log, evaluate or save.
  double grad_norm = 0, learning_rate = 0;
  std::int64_t tokens = 0;       // of this step, over all ranks
  double tokens_per_second = 0;  // since the run began or resumed
  double seconds = 0;            // of this step
  double elapsed = 0;            // since the run began or resumed
};

class TrainerCallback {
 public:
  virtual ~TrainerCallback() = default;
  // If this returns false for every callback on every rank, the host waits for device steps only
  // when they log, evaluate or save. For the other steps, on_step_end() is called before they are
  // done, without loss and norm. Computed and logged values do not change. Called once, when
  // training begins.
  virtual bool needs_every_step() const { return true; }
  virtual void on_train_begin(const TrainerState& state) { (void)state; }
  virtual void on_step_end(const StepReport& report, TrainerControl& control) {
    (void)report, (void)control;
  }
  // A record as logged: loss, grad_norm, learning_rate, epoch, or the results of an evaluation or
  // of training. `record` also has "step".
  virtual void on_log(const nlohmann::ordered_json& record) { (void)record; }
  virtual void on_evaluate(const nlohmann::ordered_json& metrics) { (void)metrics; }
  virtual void on_evaluate_progress(std::int64_t batch, std::int64_t batches) {
    (void)batch, (void)batches;
  }
  // A checkpoint has been handed to the writer.
  virtual void on_save(std::int64_t step, const std::string& path) { (void)step, (void)path; }
  virtual void on_message(const std::string& line) { (void)line; }  // a message for the user
  virtual void on_train_end(const TrainerState& state) { (void)state; }
};

}  // namespace shoal
