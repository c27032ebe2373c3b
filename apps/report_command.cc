// shoal report RUN: what a run came to, from its metrics.jsonl and results.
#include <fstream>
#include <memory>
#include <optional>

#include "commands.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal::app {
namespace {

struct Summary {
  std::optional<double> first_eval, last_eval, first_loss, last_loss, tokens_per_second;
  std::int64_t steps = 0, tokens = 0;
};

Summary summarise(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    throw_error(ErrorCode::not_found, "{} is not there: that is no run of shoal train", path);
  Summary summary;
  std::string line;
  while (std::getline(file, line)) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    if (!record.is_object()) continue;  // cut off by a crash
    const auto number = [&](const char* name) -> std::optional<double> {
      const auto it = record.find(name);
      return it != record.end() && it->is_number() ? std::optional(it->get<double>())
                                                   : std::nullopt;
    };
    summary.steps = record.value("step", summary.steps);
    summary.tokens = record.value("tokens_seen", summary.tokens);
    if (const auto loss = number("loss")) {
      if (!summary.first_loss) summary.first_loss = loss;
      summary.last_loss = loss;
    }
    if (const auto loss = number("eval_loss")) {
      if (!summary.first_eval) summary.first_eval = loss;
      summary.last_eval = loss;
    }
    if (const auto rate = number("tokens_per_second")) summary.tokens_per_second = rate;
  }
  return summary;
}

int report(const std::string& directory) {
  const Summary summary = summarise(directory + "/metrics.jsonl");
  fmt::print("steps            {}\n", format_count(summary.steps));
  const auto pair = [](const char* name, std::optional<double> first, std::optional<double> last) {
    if (first && last) fmt::print("{:<16} {:.4f} at first, {:.4f} at last\n", name, *first, *last);
  };
  pair("training loss", summary.first_loss, summary.last_loss);
  pair("validation loss", summary.first_eval, summary.last_eval);
  std::ifstream results(directory + "/all_results.json");
  if (results) {
    const nlohmann::json all = read_json_file(directory + "/all_results.json");
    if (const auto it = all.find("unigram_eval_loss"); it != all.end() && it->is_number())
      fmt::print("{:<16} {:.4f} (a model that only knows how often each token occurs)\n",
                 "unigram loss", it->get<double>());
  }
  if (summary.tokens_per_second)
    fmt::print("{:<16} {} ({} tokens seen)\n", "tokens/s",
               format_count(static_cast<std::int64_t>(*summary.tokens_per_second)),
               format_count(summary.tokens));
  if (const auto newest = newest_checkpoint(directory, nullptr))
    fmt::print("{:<16} {}\n", "last checkpoint", newest->path);
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("report", "What a run came to: losses, tokens/s, checkpoint");
  auto directory = std::make_shared<std::string>();
  command->add_option("run", *directory, "its output_dir")->required();
  command->callback([&action, directory] { action = [directory] { return report(*directory); }; });
}

}  // namespace shoal::app
