// Writes run_settings.json to output_dir, for `shoal report`: the options of a run and its machine.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/trainer/callback.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal::command {

// Option values by section, and the names of the given options, from the dump of a run's OptionSet.
// Leaves out options that are known but refused. `plan`: run_plan().
nlohmann::ordered_json recorded_options(const nlohmann::ordered_json& dump,
                                        const nlohmann::json& plan);

// Used on rank 0. Writes the file to the existing `directory` when training begins. Throws io on
// failure.
class RunSettings final : public TrainerCallback {
 public:
  RunSettings(std::string directory, const nlohmann::ordered_json& recorded, const World& world);
  // `header`: the first lines of the log.
  // `predicted`: a step of rank 0 (train/trainer/forecast.h); null: unknown.
  void describe(const Trainer& trainer, const std::vector<std::string>& header,
                const nlohmann::ordered_json& predicted);
  bool needs_every_step() const override { return false; }
  void on_train_begin(const TrainerState& state) override;

 private:
  std::string directory_;
  nlohmann::ordered_json settings_;
};

}  // namespace shoal::command
