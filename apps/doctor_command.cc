// shoal doctor: reports what this machine has, and what is missing for which feature.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "sources.h"
#include "version.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/collectives/communicator.h"
#include "shoal/kernels/kernels.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/exit_status.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/report_error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/command/machine.h"

namespace shoal::app {
namespace {

std::vector<command::Finding> shoal_findings() {
  std::vector<command::Finding> all;
  all.push_back({"shoal", version_and_build(), true, ""});
  all.push_back(
      {"kernels", kernels::make_cpu_kernels()->describe(), true, "chosen on this machine"});
  try {
    const World world = discover_world();
    all.push_back({"launched by", std::string(to_string(world.launcher)), true,
                   fmt::format("rank {} of {}", world.rank, world.size)});
  } catch (const Error& problem) {  // for example in a batch script without srun
    all.push_back({"launched by", "no launcher", false, problem.what()});
  }
  return all;
}

// Prints a line for each missing requirement. Returns the exit status.
int check(const std::vector<command::Finding>& all, const std::vector<std::string>& needed) {
  int status = report_environment("shoal doctor");
  for (const std::string& name : needed) {
    const auto found = std::ranges::find(all, name, &command::Finding::name);
    if (found == all.end()) {
      std::vector<std::string> names;
      for (const command::Finding& f : all) names.push_back(f.name);
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--need {}: there is no such line", name),
                  names_there_are(name, names));
    }
    if (found->present) continue;
    report_error("shoal doctor", fmt::format("{}: {}; {}", name, found->value, found->matter));
    status = kFailed;
  }
  return status;
}

int print(bool json, const std::vector<std::string>& needed) {
  std::vector<command::Finding> all = shoal_findings();
  for (auto* more : {&command::processor_findings, &command::library_findings}) {
    auto found = (*more)();
    all.insert(all.end(), found.begin(), found.end());
  }
  all.push_back(s3_finding());
  if (json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const command::Finding& f : all)
      rows.push_back(
          {{"name", f.name}, {"value", f.value}, {"present", f.present}, {"for", f.matter}});
    print_json(rows);
    return check(all, needed);
  }
  std::size_t name_width = 0, value_width = 0;
  for (const command::Finding& f : all) {
    name_width = std::max(name_width, f.name.size());
    value_width = std::max(value_width, std::min<std::size_t>(f.value.size(), 44));
  }
  const bool color = ::isatty(STDOUT_FILENO) != 0;
  for (const command::Finding& f : all) {
    std::string line =
        fmt::format(" {:<{}}  {:<{}}  {}", f.name, name_width, f.value, value_width, f.matter);
    line.resize(line.find_last_not_of(' ') + 1);
    fmt::print("{}{}{}", color ? (f.present ? "\033[32m" : "\033[33m") : "",
               f.present ? "ok  " : "none", color ? "\033[0m" : "");
    terminal::print("{}\n", line);
  }
  return check(all, needed);
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "doctor",
      "Check the hardware and software of this machine, and name the parts that are missing");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "as JSON");
  auto needed = std::make_shared<std::vector<std::string>>();
  command->add_option("--need", *needed,
                      "fail where this line (\"MPI\", \"GPU\") is not there; may be repeated");
  command->callback(
      [&action, json, needed] { action = [json, needed] { return print(*json, *needed); }; });
}

}  // namespace shoal::app
