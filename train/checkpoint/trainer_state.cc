#include "shoal/train/checkpoint/trainer_state.h"

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"

namespace shoal {
namespace {

template <typename T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

template <typename T>
void read(const nlohmann::json& object, const char* name, T& value) {
  try {
    object.at(name).get_to(value);
  } catch (const nlohmann::json::exception& problem) {
    throw_error(ErrorCode::corrupt_data, "'{}': {}", name, problem.what());
  }
}

template <typename T>
void read_optional(const nlohmann::json& object, const char* name, std::optional<T>& value) {
  value.reset();
  const auto it = object.find(name);
  if (it == object.end() || it->is_null()) return;
  T present{};
  read(object, name, present);
  value = present;
}

}  // namespace

nlohmann::ordered_json TrainerState::to_json() const {
  nlohmann::ordered_json json;
  json["best_metric"] = or_null(best_metric);
  json["best_model_checkpoint"] = or_null(best_model_checkpoint);
  json["epoch"] = epoch;
  json["global_step"] = global_step;
  json["is_world_process_zero"] = true;
  json["log_history"] = log_history;
  json["max_steps"] = max_steps;
  json["num_train_epochs"] = num_train_epochs;
  json["train_batch_size"] = train_batch_size;
  json["shoal"] = {
      {"global_batch_size", global_batch_size},
      {"data_epoch", data_epoch},
      {"data_position", data_position},
      {"seed", seed},
      {"data_seed", data_seed},
      {"optimizer_steps", optimizer_steps},
      {"window_loss", window_loss},
      {"window_steps", window_steps},
      {"total_loss", total_loss},
      {"tokens_seen", tokens_seen},
      {"loss_scale", loss_scale},
      {"loss_scale_dynamic", loss_scale_dynamic},
      {"loss_scale_good_steps", loss_scale_good_steps},
      {"loss_scale_shift_left", loss_scale_shift_left},
      {"loss_scale_overflows_at_minimum", loss_scale_overflows_at_minimum},
      {"layout",
       {{"ranks", layout.ranks},
        {"threads", layout.threads},
        {"instruction_set", layout.instruction_set},
        {"plan", layout.plan}}},
  };
  if (!compute_dtype.empty()) json["shoal"]["compute_dtype"] = compute_dtype;
  if (!stream.is_null()) json["shoal"]["stream"] = stream;
  if (!data.empty()) json["shoal"]["data"] = data;
  if (evaluations_without_gain > 0)
    json["shoal"]["evaluations_without_gain"] = evaluations_without_gain;
  return json;
}

TrainerState TrainerState::from_json(const nlohmann::json& json, const std::string& source) {
  TrainerState state;
  try {
    SHOAL_CHECK(json.is_object(), "it is not an object");
    read_optional(json, "best_metric", state.best_metric);
    read_optional(json, "best_model_checkpoint", state.best_model_checkpoint);
    read(json, "epoch", state.epoch);
    read(json, "global_step", state.global_step);
    read(json, "max_steps", state.max_steps);
    read(json, "num_train_epochs", state.num_train_epochs);
    read(json, "train_batch_size", state.train_batch_size);
    nlohmann::json history;
    read(json, "log_history", history);
    SHOAL_CHECK(history.is_array(), "'log_history' is not an array");
    state.log_history = history;
    nlohmann::json own;
    read(json, "shoal", own);
    read(own, "global_batch_size", state.global_batch_size);
    read(own, "data_epoch", state.data_epoch);
    read(own, "data_position", state.data_position);
    read(own, "seed", state.seed);
    read(own, "data_seed", state.data_seed);
    read(own, "optimizer_steps", state.optimizer_steps);
    read(own, "window_loss", state.window_loss);
    read(own, "window_steps", state.window_steps);
    read(own, "total_loss", state.total_loss);
    read(own, "tokens_seen", state.tokens_seen);
    read(own, "loss_scale", state.loss_scale);
    read(own, "loss_scale_good_steps", state.loss_scale_good_steps);
    // Files before 2026-11-22 lack these; every scale except 1 was dynamic then.
    state.loss_scale_dynamic = state.loss_scale != 1;
    if (own.contains("loss_scale_dynamic")) {
      read(own, "loss_scale_dynamic", state.loss_scale_dynamic);
      read(own, "loss_scale_shift_left", state.loss_scale_shift_left);
      read(own, "loss_scale_overflows_at_minimum", state.loss_scale_overflows_at_minimum);
    }
    if (own.contains("compute_dtype")) read(own, "compute_dtype", state.compute_dtype);
    if (own.contains("stream")) read(own, "stream", state.stream);
    if (own.contains("data")) read(own, "data", state.data);
    SHOAL_CHECK(state.data.is_object(), "'data' is not an object");
    if (own.contains("evaluations_without_gain"))
      read(own, "evaluations_without_gain", state.evaluations_without_gain);
    nlohmann::json layout;
    read(own, "layout", layout);
    read(layout, "ranks", state.layout.ranks);
    read(layout, "threads", state.layout.threads);
    read(layout, "instruction_set", state.layout.instruction_set);
    if (layout.contains("plan")) read(layout, "plan", state.layout.plan);
    SHOAL_CHECK(state.global_step >= 0 && state.data_epoch >= 0 && state.data_position >= 0,
                "a negative step or position");
  } catch (const Error& problem) {
    throw_error(ErrorCode::corrupt_data, "{}: {}", source, problem.what());
  }
  return state;
}

TrainerState read_trainer_state(const std::string& checkpoint_directory) {
  const std::string path = checkpoint_directory + "/trainer_state.json";
  return TrainerState::from_json(read_json_file(path), path);
}

}  // namespace shoal
