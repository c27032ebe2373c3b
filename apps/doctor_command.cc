// shoal doctor: what this machine has, and what is missing for what.
#include <algorithm>
#include <memory>

#include "commands.h"
#include "machine.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/collectives/communicator.h"
#include "shoal/kernels/kernels.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::app {
namespace {

std::vector<Finding> shoal_findings() {
  std::vector<Finding> all;
  all.push_back({"shoal", SHOAL_VERSION, true, ""});
  all.push_back(
      {"kernels", kernels::make_cpu_kernels()->describe(), true, "chosen on this machine"});
  const World world = discover_world();
  all.push_back({"launched by", std::string(to_string(world.launcher)), true,
                 fmt::format("rank {} of {}", world.rank, world.size)});
  return all;
}

int print(bool json) {
  std::vector<Finding> all = shoal_findings();
  for (auto* more : {&processor_findings, &library_findings}) {
    auto found = (*more)();
    all.insert(all.end(), found.begin(), found.end());
  }
  if (json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Finding& f : all)
      rows.push_back(
          {{"name", f.name}, {"value", f.value}, {"present", f.present}, {"for", f.matter}});
    fmt::print("{}\n", rows.dump(2));
    return 0;
  }
  std::size_t name_width = 0, value_width = 0;
  for (const Finding& f : all) {
    name_width = std::max(name_width, f.name.size());
    value_width = std::max(value_width, std::min<std::size_t>(f.value.size(), 44));
  }
  const bool color = ::isatty(STDOUT_FILENO) != 0;
  for (const Finding& f : all) {
    std::string line =
        fmt::format("{}{}{} {:<{}}  {:<{}}  {}", color ? (f.present ? "\033[32m" : "\033[33m") : "",
                    f.present ? "ok  " : "none", color ? "\033[0m" : "", f.name, name_width,
                    f.value, value_width, f.matter);
    line.resize(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
  return 0;
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("doctor", "What this machine has, and what is missing");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "as JSON");
  command->callback([&action, json] { action = [json] { return print(*json); }; });
}

}  // namespace shoal::app
