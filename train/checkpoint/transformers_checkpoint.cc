#include "shoal/train/checkpoint/transformers_checkpoint.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"

namespace shoal {

bool is_transformers_checkpoint(const std::string& path) {
  const auto has = [&](std::string_view name) {
    return path_exists(fmt::format("{}/{}", path, name));
  };
  if (has(kCompleteMarker)) return false;
  constexpr std::array kOfPyTorch = {"optimizer.pt", "optimizer.bin",    "scheduler.pt",
                                     "scaler.pt",    "rng_state.pth",    "rng_state_0.pth",
                                     "latest",       "training_args.bin"};
  if (std::ranges::any_of(kOfPyTorch, has)) return true;
  if (!has("trainer_state.json")) return false;
  try {
    const nlohmann::json state = read_json_file(path + "/trainer_state.json");
    return state.is_object() && state.contains("log_history") && !state.contains("shoal");
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::corrupt_data) throw;
    return false;  // cut short while it was written
  }
}

std::string why_not_resumed(const std::string& path) {
  return fmt::format(
      "it is a checkpoint of transformers' Trainer, whose optimizer state Shoal does not read; "
      "begin a new run with its weights: --model_name_or_path {}",
      path);
}

}  // namespace shoal
