#include "shoal/train/command/run_settings.h"

#include <ctime>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "shoal/runtime/io/files.h"
#include "shoal/train/command/machine.h"

namespace shoal::command {

nlohmann::ordered_json recorded_options(const nlohmann::ordered_json& dump,
                                        const nlohmann::json& plan) {
  nlohmann::ordered_json recorded;
  recorded["options"] = nlohmann::ordered_json::object();
  recorded["given"] = nlohmann::ordered_json::array();
  const auto& sources = dump.at("_sources");
  for (const auto& [section, values] : dump.items()) {
    if (section == "_sources" || section == "later") continue;
    for (const auto& [name, value] : values.items()) {
      recorded["options"][section][name] = value;
      if (sources.at(name) != "default") recorded["given"].push_back(name);
    }
  }
  recorded["plan"] = plan;
  return recorded;
}

RunSettings::RunSettings(std::string directory, const nlohmann::ordered_json& recorded,
                         const World& world)
    : directory_(std::move(directory)) {
  settings_["program"] = "shoal " SHOAL_VERSION;
  settings_["started"] = fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)));
  settings_["ranks"] = world.size;
  settings_["hosts"] = world.nodes;
  settings_["host"] = world.host;
  settings_["launcher"] = to_string(world.launcher);
  auto& machine = settings_["machine"] = nlohmann::ordered_json::object();
  for (const Finding& finding : processor_findings())
    if (finding.present) machine[finding.name] = finding.value;
  settings_.update(recorded);
}

void RunSettings::describe(const Trainer& trainer, const std::vector<std::string>& header,
                           const nlohmann::ordered_json& predicted) {
  settings_["total_steps"] = trainer.total_steps();
  settings_["global_batch_size"] = trainer.state().global_batch_size;
  settings_["parameters"] = trainer.parameter_count();
  settings_["header"] = header;
  if (!predicted.is_null()) settings_["predicted"] = predicted;
}

void RunSettings::on_train_begin(const TrainerState&) {
  // A name of a file need not be UTF-8.
  const std::string text =
      settings_.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  write_file_atomically(directory_ + "/run_settings.json", text + "\n");
}

}  // namespace shoal::command
