// trainer_state.json: the state of a run. Hugging Face's fields keep their names; further values
// for an exact resume are under "shoal".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace shoal {

struct WorldLayout {  // layout of the run that wrote the checkpoint
  int ranks = 1, threads = 1;
  std::string instruction_set;
  // parallel::plan_json(); {}: each rank had the whole model. null in files before 2026-11-28.
  nlohmann::json plan = {};
};

struct TrainerState {
  std::int64_t global_step = 0;
  std::int64_t max_steps = 0;
  double epoch = 0;  // as logged: steps done / steps per epoch
  double num_train_epochs = 0;
  std::int64_t train_batch_size = 0;   // per device
  std::int64_t global_batch_size = 0;  // samples per step, over ranks and accumulation
  std::optional<double> best_metric;
  std::optional<std::string> best_model_checkpoint;
  bool evaluation_due = false;                // a signal interrupted this step's evaluation
  std::int64_t evaluations_without_gain = 0;  // in a row; counted if early stopping is possible
  // Keys are sorted, so that equal runs write equal bytes, resumed or not.
  nlohmann::json log_history = nlohmann::json::array();

  // The sample at which the next step begins (SamplerState).
  std::int64_t data_epoch = 0, data_position = 0;
  nlohmann::json stream;  // StreamState if the training set is a stream; else null
  // Options that determine the rows of an epoch and their order: option -> value, including
  // "samples". Empty in files before 2026-11-24.
  nlohmann::json data = nlohmann::json::object();
  std::uint64_t seed = 0, data_seed = 0;
  std::int64_t optimizer_steps = 0;  // fewer than global_step if loss scaling skipped updates
  double window_loss = 0;            // sum of step losses since the last log line
  std::int64_t window_steps = 0;
  double total_loss = 0;  // sum of step losses since step 0
  std::int64_t tokens_seen = 0;
  // nn::LossScalerState. A resumed run restores it only if the scale was dynamic.
  double loss_scale = 1;
  bool loss_scale_dynamic = false;
  std::int64_t loss_scale_good_steps = 0, loss_scale_shift_left = 1;
  std::int64_t loss_scale_overflows_at_minimum = 0;
  WorldLayout layout;
  std::string compute_dtype;  // "f32", "bf16", "f16"; empty in files before 2026-11-28

  nlohmann::ordered_json to_json() const;
  // Throws corrupt_data that names `source` and the field.
  static TrainerState from_json(const nlohmann::json& json, const std::string& source);
};

inline constexpr std::string_view kTrainerStateFile = "trainer_state.json";
TrainerState read_trainer_state(const std::string& checkpoint_directory);

}  // namespace shoal
