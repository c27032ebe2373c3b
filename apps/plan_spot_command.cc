// shoal plan spot: what a run costs and when it ends on spot instances, replayed over traces.
#include "plan_spot_command.h"

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/parallel/predict/machine.h"
#include "shoal/parallel/predict/spot/outcome.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/train/trainer/console.h"

namespace shoal::app {
namespace {

using nlohmann::ordered_json;
using parallel::SpotJob;
using parallel::SpotOutcome;
using parallel::SpotPolicy;
using parallel::SpotRun;
using parallel::SpotTrace;

struct SpotWords {
  std::vector<std::string> traces;
  std::string machine;
  double hours = 0, deadline = 0, budget = 0, price = -1, spot_price = -1;
  double checkpoint = 60, restart = 540, interval = -1;
  int nodes = 1;
  bool json = false;
};

struct PolicyOutcome {
  SpotPolicy policy;
  SpotOutcome outcome;
};

struct TraceAnswer {
  SpotTrace trace;
  parallel::SpotAvailability there;
  SpotJob job;
  std::vector<PolicyOutcome> policies;
  // The cheapest that ends, never misses the deadline, and in 95 % of the runs keeps the budget.
  const PolicyOutcome* chosen = nullptr;
  const PolicyOutcome* cheapest = nullptr;  // the same without the budget
};

double hours(double seconds) { return seconds / 3600; }

SpotJob job_of(const SpotWords& words) {
  double price = words.price;
  if (price < 0 && !words.machine.empty())
    price = parallel::find_machine(words.machine).price.dollars_per_hour;
  SHOAL_CHECK(price > 0,
              "shoal plan spot needs the price of an on-demand node: --price, or a --machine that "
              "has one");
  return {.work = words.hours * 3600,
          .deadline = words.deadline * 3600,
          .nodes = words.nodes,
          .checkpoint = words.checkpoint,
          .restart = words.restart,
          .price = price,
          .spot_price = words.spot_price};
}

void choose(TraceAnswer& answer, double budget) {
  for (const PolicyOutcome& one : answer.policies) {
    const SpotOutcome& all = one.outcome;
    if (all.late > 0 || !std::isfinite(all.last_finish)) continue;
    const auto cheaper = [&all](const PolicyOutcome* than) {
      return than == nullptr || all.mean.cost < than->outcome.mean.cost;
    };
    if (cheaper(answer.cheapest)) answer.cheapest = &one;
    if ((budget == 0 || all.p95_cost <= budget) && cheaper(answer.chosen)) answer.chosen = &one;
  }
}

TraceAnswer answer_for(const std::string& path, const SpotWords& words) {
  TraceAnswer answer;
  answer.trace = parallel::read_spot_trace(path);
  answer.job = job_of(words);
  answer.there = parallel::availability(answer.trace, words.nodes);
  SpotJob& job = answer.job;
  if (words.interval >= 0)
    job.interval = words.interval;
  else if (answer.there.interruptions > 0)
    job.interval =
        parallel::checkpoint_interval(job.checkpoint, answer.there.between_interruptions);
  else
    job.interval = job.checkpoint > 0 ? job.work : 0;
  ProgressBar bar(stderr, "run");
  for (const SpotPolicy policy : parallel::kSpotPolicies) {
    if (parallel::keeps_deadline(policy) && job.deadline == 0) continue;
    const auto samples = static_cast<std::int64_t>(answer.trace.instances.size());
    const std::string name(parallel::name(policy));
    answer.policies.push_back({policy, outcome(answer.trace, job, policy, [&](std::size_t done) {
                                 bar.update(static_cast<std::int64_t>(done), samples, name);
                               })});
  }
  choose(answer, words.budget);
  return answer;
}

double saving(const TraceAnswer& answer, const SpotOutcome& all) {
  return 1 - all.mean.cost / answer.policies.front().outcome.mean.cost;
}

ordered_json json_of_answer(const TraceAnswer& answer) {
  ordered_json policies = ordered_json::array();
  for (const auto& [policy, all] : answer.policies) {
    const SpotRun& mean = all.mean;
    policies.push_back({{"policy", parallel::name(policy)},
                        {"starts", all.starts},
                        {"late", all.late},
                        {"dollars", mean.cost},
                        {"p95_dollars", all.p95_cost},
                        {"saving", saving(answer, all)},
                        {"finish_hours", hours(mean.finish)},
                        {"p95_finish_hours", hours(all.p95_finish)},
                        {"last_finish_hours", hours(all.last_finish)},
                        {"interruptions", mean.interruptions},
                        {"lost_hours", hours(mean.lost)},
                        {"starting_hours", hours(mean.starting)},
                        {"checkpoint_hours", hours(mean.checkpoints)},
                        {"waiting_hours", hours(mean.waiting)},
                        {"on_demand_hours", hours(mean.on_demand)}});
  }
  const auto name_of = [](const PolicyOutcome* one) {
    return one == nullptr ? ordered_json() : ordered_json(parallel::name(one->policy));
  };
  return {{"trace", answer.trace.name},
          {"samples", answer.trace.instances.size()},
          {"gap_seconds", answer.trace.gap},
          {"available", answer.there.share},
          {"interruptions", answer.there.interruptions},
          {"hours_between_interruptions", hours(answer.there.between_interruptions)},
          {"checkpoint_interval_seconds", answer.job.interval},
          {"policies", policies},
          {"chosen", name_of(answer.chosen)}};
}

void print_answer(const TraceAnswer& answer, const SpotWords& words) {
  const auto& there = answer.there;
  terminal::print("{}: {} samples of {:g} s; {} node{} there {:.1f} % of the time",
                  answer.trace.name, answer.trace.instances.size(), answer.trace.gap, words.nodes,
                  words.nodes == 1 ? "" : "s", 100 * there.share);
  if (there.interruptions > 0)
    terminal::print(", interrupted every {:.2f} h of it", hours(there.between_interruptions));
  terminal::print("\na checkpoint of {:g} s after each {:g} s of work, {:g} s to start\n",
                  answer.job.checkpoint, answer.job.interval, answer.job.restart);
  terminal::print("{:<17} {:>9} {:>7} {:>9} {:>8} {:>8} {:>6} {:>7} {:>7} {:>7} {:>7} {:>7}\n",
                  "policy", "dollars", "saving", "95 %", "finish h", "95 %", "late", "interr.",
                  "lost h", "start h", "ckpt h", "wait h");
  for (const auto& [policy, all] : answer.policies) {
    const SpotRun& mean = all.mean;
    if (!std::isfinite(all.last_finish)) {
      terminal::print("{:<17} never ends: no instances stay until a checkpoint\n",
                      parallel::name(policy));
      continue;
    }
    terminal::print(
        "{:<17} {:>9.2f} {:>6.1f}% {:>9.2f} {:>8.2f} {:>8.2f} {:>6} {:>7.1f} {:>7.2f} {:>7.2f} "
        "{:>7.2f} {:>7.2f}\n",
        parallel::name(policy), mean.cost, 100 * saving(answer, all), all.p95_cost,
        hours(mean.finish), hours(all.p95_finish),
        answer.job.deadline > 0 ? fmt::format("{:.1f}%", 100.0 * static_cast<double>(all.late) /
                                                             static_cast<double>(all.starts))
                                : "-",
        mean.interruptions, hours(mean.lost), hours(mean.starting), hours(mean.checkpoints),
        hours(mean.waiting));
  }
  if (answer.chosen != nullptr)
    terminal::print("cheapest{}{}: {}, {:.2f} dollars expected\n",
                    words.deadline > 0 ? " that never misses the deadline" : "",
                    words.budget > 0 ? " within the budget in 95 % of the runs" : "",
                    parallel::name(answer.chosen->policy), answer.chosen->outcome.mean.cost);
  else
    terminal::print(
        "nothing keeps the budget of {:.2f} dollars in 95 % of the runs; {} needs "
        "{:.2f}\n",
        words.budget, parallel::name(answer.cheapest->policy), answer.cheapest->outcome.p95_cost);
}

int plan_spot(const SpotWords& words) {
  ordered_json traces = ordered_json::array();
  for (const std::string& path : words.traces) {
    const TraceAnswer answer = answer_for(path, words);
    if (words.json)
      traces.push_back(json_of_answer(answer));
    else
      print_answer(answer, words);
  }
  if (words.json) print_json({{"traces", traces}});
  return 0;
}

}  // namespace

void add_plan_spot(CLI::App& plan, Action& action) {
  CLI::App* const command = plan.add_subcommand(
      "spot", "Cost and finish on spot instances, replayed over traces of their availability");
  const auto words = std::make_shared<SpotWords>();
  command->add_option("traces", words->traces, "JSON files in the form of skypilot-org/spot-traces")
      ->required();
  command->add_option("--hours", words->hours, "hours that the run works on --nodes nodes")
      ->required()
      ->check(from_to(1e-3, 1e5));
  command->add_option("--deadline", words->deadline, "hours from the start; 0: none")
      ->check(from_to(0.0, 1e5));
  command->add_option("--budget", words->budget, "dollars; 0: none")->check(at_least(0));
  command->add_option("--nodes", words->nodes, "nodes that the run needs at once")
      ->check(from_to(1, 100'000))
      ->capture_default_str();
  command->add_option("--price", words->price, "dollars an hour and on-demand node")
      ->check(at_least(0));
  command->add_option("--machine", words->machine, "machine whose price --price replaces");
  command
      ->add_option("--spot-price", words->spot_price, "the same of spot; else the trace's prices")
      ->check(at_least(0));
  command->add_option("--checkpoint-seconds", words->checkpoint, "time that a checkpoint takes")
      ->check(from_to(0.0, 1e5))
      ->capture_default_str();
  command->add_option("--restart-seconds", words->restart, "from new instances to the first step")
      ->check(from_to(0.0, 1e5))
      ->capture_default_str();
  command
      ->add_option("--interval-seconds", words->interval,
                   "work between checkpoints; else Daly's, by --checkpoint-seconds and the trace")
      ->check(from_to(0.0, 1e9));
  command->add_flag("--json", words->json, "all outcomes, as JSON");
  rarely(*command, {"--machine", "--spot-price", "--checkpoint-seconds", "--restart-seconds",
                    "--interval-seconds"});
  command->callback([&action, words] { action = [words] { return plan_spot(*words); }; });
}

}  // namespace shoal::app
