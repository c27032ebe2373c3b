#include "shoal/train/checkpoint/trainer_state.h"

#include <limits>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal {
namespace {

template <typename T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

// Limit of counts. No run reaches it, and sums of a few such counts fit into 64 bits.
constexpr std::int64_t kMost = std::int64_t{1} << 53U;

// Reads fields that must exist and be in range. Errors name the file and the field.
class StateFields {
 public:
  StateFields(const nlohmann::json& object, std::string_view file) : fields_(object, file) {}

  // Reads an integer from `least` to `most`.
  void integer(std::string_view name, std::integral auto& out, std::int64_t least = 0,
               std::int64_t most = kMost) const {
    need(name);
    fields_.integer(name, out);
    if (std::cmp_less(out, least) || std::cmp_greater(out, most))
      wrong(name, fmt::format("a whole number from {} to {}", least, most));
  }
  void seed(std::string_view name, std::uint64_t& out) const {
    need(name);
    fields_.integer(name, out);
  }
  void number(std::string_view name, double& out) const {
    need(name);
    fields_.number(name, out);
  }
  // Null stands for a value that was not finite.
  void sum_of_losses(std::string_view name, double& out) const {
    out = std::numeric_limits<double>::quiet_NaN();
    fields_.number(name, out);
  }
  // Reads a number from 0 to kMost.
  void amount(std::string_view name, double& out) const {
    number(name, out);
    if (!(out >= 0 && out <= static_cast<double>(kMost))) wrong(name, "a number of 0 or more");
  }
  void boolean(std::string_view name, bool& out) const { fields_.boolean(name, out); }
  void text(std::string_view name, std::string& out) const { fields_.text(name, out); }
  void optional_number(std::string_view name, std::optional<double>& out) const {
    if (has(name)) number(name, out.emplace());
  }
  void optional_text(std::string_view name, std::optional<std::string>& out) const {
    if (has(name)) text(name, out.emplace());
  }
  bool has(std::string_view name) const { return fields_.has(name); }
  const nlohmann::json& need(std::string_view name) const {
    const nlohmann::json* const value = fields_.find(name);
    if (value == nullptr) fields_.fail(fmt::format("lacks {}", name));
    return *value;
  }
  [[noreturn]] void wrong(std::string_view name, std::string_view want) const {
    fields_.wrong(name, need(name), want);
  }

 private:
  JsonFields fields_;
};

void read_own(const StateFields& own, TrainerState& state) {
  const std::int64_t steps = state.global_step;
  own.integer("global_batch_size", state.global_batch_size);
  own.integer("data_epoch", state.data_epoch);
  // The Trainer checks the upper limit.
  own.integer("data_position", state.data_position, 0, std::numeric_limits<std::int64_t>::max());
  own.seed("seed", state.seed);
  own.seed("data_seed", state.data_seed);
  own.integer("optimizer_steps", state.optimizer_steps, 0, steps);
  own.sum_of_losses("window_loss", state.window_loss);
  own.integer("window_steps", state.window_steps, 0, steps);
  own.sum_of_losses("total_loss", state.total_loss);
  own.integer("tokens_seen", state.tokens_seen);
  own.number("loss_scale", state.loss_scale);
  if (!(state.loss_scale > 0 && state.loss_scale <= std::numeric_limits<float>::max()))
    own.wrong("loss_scale", "a positive float");
  own.integer("loss_scale_good_steps", state.loss_scale_good_steps);
  // Files written before 2026-11-22 lack these fields. At that time, every scale except 1 was
  // dynamic.
  state.loss_scale_dynamic = state.loss_scale != 1;
  if (own.has("loss_scale_dynamic")) {
    own.boolean("loss_scale_dynamic", state.loss_scale_dynamic);
    own.integer("loss_scale_shift_left", state.loss_scale_shift_left);
    own.integer("loss_scale_overflows_at_minimum", state.loss_scale_overflows_at_minimum);
  }
  own.text("compute_dtype", state.compute_dtype);
  if (own.has("stream")) state.stream = own.need("stream");
  if (own.has("data")) state.data = own.need("data");
  if (!state.data.is_object()) own.wrong("data", "an object");
  if (own.has("evaluation_due")) own.boolean("evaluation_due", state.evaluation_due);
  if (own.has("evaluations_without_gain"))
    own.integer("evaluations_without_gain", state.evaluations_without_gain);
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
  if (evaluation_due) json["shoal"]["evaluation_due"] = true;
  if (evaluations_without_gain > 0)
    json["shoal"]["evaluations_without_gain"] = evaluations_without_gain;
  return json;
}

TrainerState TrainerState::from_json(const nlohmann::json& json, const std::string& source) {
  constexpr std::int64_t kMostRanks = std::numeric_limits<int>::max();
  TrainerState state;
  try {
    const StateFields fields(json, source);
    fields.optional_number("best_metric", state.best_metric);
    fields.optional_text("best_model_checkpoint", state.best_model_checkpoint);
    fields.amount("epoch", state.epoch);
    fields.integer("global_step", state.global_step);
    fields.integer("max_steps", state.max_steps);
    fields.amount("num_train_epochs", state.num_train_epochs);
    fields.integer("train_batch_size", state.train_batch_size, 0, kMostRanks);
    state.log_history = fields.need("log_history");
    if (!state.log_history.is_array()) fields.wrong("log_history", "an array");
    read_own({fields.need("shoal"), source}, state);
    const nlohmann::json& own = fields.need("shoal");
    const StateFields layout(StateFields(own, source).need("layout"), source);
    layout.integer("ranks", state.layout.ranks, 1, kMostRanks);
    layout.integer("threads", state.layout.threads, 0, kMostRanks);
    (void)layout.need("instruction_set");
    layout.text("instruction_set", state.layout.instruction_set);
    if (const auto plan = own.at("layout").find("plan"); plan != own.at("layout").end())
      state.layout.plan = *plan;
  } catch (const Error& problem) {
    throw_error(ErrorCode::corrupt_data, "{}", problem.message());
  }
  return state;
}

TrainerState read_trainer_state(const std::string& checkpoint_directory) {
  const std::string path = fmt::format("{}/{}", checkpoint_directory, kTrainerStateFile);
  return TrainerState::from_json(read_json_file(path), path);
}

}  // namespace shoal
