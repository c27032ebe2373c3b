// shoal diagnose DUMPS...: reads dumps of the ranks' flight recorders and reports what happened.
#include <algorithm>
#include <memory>

#include "commands.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/diagnosis/diagnose.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/file_system.h"

namespace shoal::app {
namespace {

// If `path` has directories of several jobs (SHOAL_FLIGHT_DIR), returns the newest; otherwise
// `path`.
std::string newest_job(const std::string& path) {
  std::vector<std::string> jobs;
  for (const DirectoryEntry& entry : list_directory(path))
    if (entry.kind == FileKind::directory && entry.name.starts_with("job-"))
      jobs.push_back(entry.path);
  if (jobs.empty()) return path;
  std::sort(jobs.begin(), jobs.end());
  if (jobs.size() > 1)
    terminal::print(stderr,
                    "shoal diagnose: {} is the newest of {} jobs in {}; name another to read it\n",
                    jobs.back(), jobs.size(), path);
  return jobs.back();
}

// Expands directories to the dumps in them.
std::vector<std::string> dump_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (!is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const auto before = files.size();
    for (const DirectoryEntry& entry : list_directory(newest_job(path)))
      if (entry.name.starts_with("flight-") && entry.name.ends_with(".json"))
        files.push_back(entry.path);
    if (files.size() == before)
      throw Error(ErrorCode::not_found, fmt::format("no flight-*.json in {}", path),
                  "set SHOAL_FLIGHT_DIR on every rank, so that failures are written down there");
  }
  std::sort(files.begin(), files.end());
  return files;
}

int diagnose(const std::vector<std::string>& paths, bool json) {
  std::vector<collectives::FlightDump> dumps;
  for (const std::string& file : dump_files(paths))
    dumps.push_back(collectives::read_flight_dump(file));
  const auto found = collectives::diagnose(dumps);
  if (json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const auto& group : found) all.push_back(collectives::to_json(group));
    print_json(all, 1);
    return 0;
  }
  for (const auto& group : found) {
    terminal::print("group {}: {}: {}\n", group.group, to_string(group.verdict), group.summary);
    for (const std::string& line : group.details) terminal::print("  {}\n", line);
    if (!group.without_dump.empty())
      terminal::print("  no dump of {} {}\n", group.without_dump.size() == 1 ? "rank" : "ranks",
                      fmt::join(group.without_dump, ", "));
  }
  return 0;
}

}  // namespace

void add_diagnose(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "diagnose",
      "Say what happened from the dumps of the ranks' flight recorders (exit status 0 whatever it "
      "was)");
  auto paths = std::make_shared<std::vector<std::string>>();
  auto json = std::make_shared<bool>(false);
  command
      ->add_option("dumps", *paths,
                   "flight-*.json files, or directories of them (of several jobs' the newest)")
      ->required();
  command->add_flag("--json", *json, "for programs");
  command->callback(
      [&action, paths, json] { action = [paths, json] { return diagnose(*paths, *json); }; });
}

}  // namespace shoal::app
