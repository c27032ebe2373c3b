// What a program may hang on the trainer's events. Called on every rank, from the thread that
// trains, in the order in which callbacks were added. An exception ends training.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace shoal {

struct TrainerState;

// What a callback may ask for; the trainer looks after on_step_end. Every rank must ask alike.
struct TrainerControl {
  bool should_save = false, should_evaluate = false, should_stop = false;
};

struct StepReport {
  std::int64_t step = 0, total_steps = 0;  // updates done; of this run
  // False: the step runs on a device, nobody waits for it, loss and norm are NaN, and the learning
  // rate is that of a run in which no step since the last known one is left out (see
  // TrainerCallback::needs_every_step()).
  bool known = true;
  double loss = 0;  // mean over the step's targets, all ranks
  // The norm is NaN where the updates run behind the next forward (ddp_overlap_forward), but for
  // the steps that log, evaluate or save.
  double grad_norm = 0, learning_rate = 0;
  std::int64_t tokens = 0;       // of this step, all ranks
  double tokens_per_second = 0;  // since the run began or resumed
  double seconds = 0;            // of this step
  double elapsed = 0;            // since the run began or resumed
};

class TrainerCallback {
 public:
  virtual ~TrainerCallback() = default;
  // False of every callback of every rank: steps on a device are waited for where they log,
  // evaluate or save, and on_step_end() hears of those between before they are done, without loss
  // and norm. What is computed and logged is the same. Asked once, when training begins.
  virtual bool needs_every_step() const { return true; }
  virtual void on_train_begin(const TrainerState& state) { (void)state; }
  virtual void on_step_end(const StepReport& report, TrainerControl& control) {
    (void)report, (void)control;
  }
  // A record as it is logged: loss, grad_norm, learning_rate, epoch, or what evaluation and the
  // end of training give. `record` also has "step".
  virtual void on_log(const nlohmann::ordered_json& record) { (void)record; }
  virtual void on_evaluate(const nlohmann::ordered_json& metrics) { (void)metrics; }
  virtual void on_evaluate_progress(std::int64_t batch, std::int64_t batches) {
    (void)batch, (void)batches;
  }
  // A checkpoint has been handed to the writer.
  virtual void on_save(std::int64_t step, const std::string& path) { (void)step, (void)path; }
  virtual void on_message(const std::string& line) { (void)line; }  // something a user should read
  virtual void on_train_end(const TrainerState& state) { (void)state; }
};

}  // namespace shoal
