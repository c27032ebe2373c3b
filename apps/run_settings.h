// run_settings.json in output_dir: what a run was told and where it ran, for `shoal report`.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/trainer/callback.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal::app {

// Options with their values, by section, and the names of those that were given: from the dump of
// a run's OptionSet, without its known-but-refused ones. `plan`: run_plan().
nlohmann::ordered_json told_options(const nlohmann::ordered_json& dump, const nlohmann::json& plan);

// Rank 0's; writes the file when training begins, into `directory`, which is there by then. io
// where that fails.
class RunSettings final : public TrainerCallback {
 public:
  RunSettings(std::string directory, const nlohmann::ordered_json& told, const World& world);
  // `header`: what the log began with.
  void describe(const Trainer& trainer, const std::vector<std::string>& header);
  bool needs_every_step() const override { return false; }
  void on_train_begin(const TrainerState& state) override;

 private:
  std::string directory_;
  nlohmann::ordered_json settings_;
};

}  // namespace shoal::app
