// shoal jobs list | describe | attach | logs | stop | cost | metrics
#include <algorithm>
#include <cstdio>
#include <memory>

#include "aws.h"
#include "command_line.h"
#include "commands.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/json.h"
#include "shoal/sagemaker/rest/encode.h"
#include "shoal/sagemaker/rest/training_jobs.h"

namespace shoal::app {
namespace {

using nlohmann::ordered_json;
using sagemaker::DescribedJob;
using sagemaker::TrainingJobs;

struct JobWords {
  AwsWords aws;
  std::vector<std::string> names;
  sagemaker::JobFilter filter;
  std::string prices;
  WatchOptions watch;
  bool json = false, follow = false, no_logs = false;
};

TrainingJobs jobs_of(const JobWords& words) {
  return TrainingJobs(session_of(words.aws).client(sagemaker::Service::sagemaker));
}

std::string text_of(const std::optional<sagemaker::Moment>& moment) {
  return moment ? sagemaker::extended_time(*moment) : "-";
}
std::string text_of(const std::optional<std::int64_t>& count) {
  return count ? fmt::format("{}", *count) : "-";
}

int list(const JobWords& words) {
  const auto jobs = jobs_of(words).list(words.filter);
  if (words.json) {
    auto all = ordered_json::array();
    for (const auto& job : jobs)
      all.push_back({{"name", job.name},
                     {"status", job.status},
                     {"created", job.created ? ordered_json(text_of(job.created)) : ordered_json()},
                     {"ended", job.ended ? ordered_json(text_of(job.ended)) : ordered_json()},
                     {"arn", job.arn}});
    print_json(all);
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"NAME", "STATUS", "CREATED", "ENDED"}};
  for (const auto& job : jobs)
    rows.push_back({job.name, job.status, text_of(job.created), text_of(job.ended)});
  terminal::print("{}", table(rows));
  return 0;
}

std::string instances_of(const DescribedJob& job) {
  std::string text;
  for (const auto& [type, count] : job.instances)
    text += fmt::format("{}{} x {}", text.empty() ? "" : " + ", count, type);
  return (text.empty() ? "-" : text) + (job.spot ? ", spot" : "");
}

int describe(const JobWords& words) {
  const DescribedJob job = jobs_of(words).describe(job_name_in(words.names.front()));
  if (words.json) {
    print_json(job.answer);
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {
      {"name", job.name},
      {"arn", job.arn},
      {"status", job.status + (job.secondary_status.empty() || job.secondary_status == job.status
                                   ? ""
                                   : " (" + job.secondary_status + ")")},
      {"instances", instances_of(job)},
      {"created", text_of(job.created)},
      {"ended", text_of(job.ended)},
      {"training seconds", text_of(job.training_seconds)},
      {"billed seconds", text_of(job.billable_seconds)}};
  if (const auto saving = job.spot_saving_percent())
    rows.push_back({"spot saving", fmt::format("{:.1f} %", *saving)});
  if (!job.failure_reason.empty()) rows.push_back({"failure", job.failure_reason});
  if (!job.model_artifacts.empty()) rows.push_back({"model", job.model_artifacts});
  std::vector<std::vector<std::string>> steps;
  for (const auto& step : job.transitions)
    steps.push_back({text_of(step.start), step.status, step.message});
  terminal::print("{}{}", table(rows), table(steps));
  return 0;
}

int attach(const JobWords& words) {
  WatchOptions options = words.watch;
  options.json = words.json;
  options.logs = !words.no_logs;
  return watch_job(session_of(words.aws), job_name_in(words.names.front()), options);
}

int logs(const JobWords& words) {
  const sagemaker::Session session = session_of(words.aws);
  const std::string name = job_name_in(words.names.front());
  if (words.follow) {
    WatchOptions options = words.watch;
    options.json = words.json;
    options.status = false;
    // Ignores the result: only `attach` returns the job's status.
    watch_job(session, name, options);
    return 0;
  }
  sagemaker::JobLog log(session.client(sagemaker::Service::logs), name);
  bool any = false;
  log.read_new([&](const std::vector<sagemaker::LogEvent>& events) {
    any = true;
    print_log(events, words.json);
  });
  // throws if there is no such job
  if (!any) TrainingJobs(session.client(sagemaker::Service::sagemaker)).describe(name);
  return 0;
}

int stop(const JobWords& words) {
  const TrainingJobs jobs = jobs_of(words);
  for (const std::string& name : words.names) {
    jobs.stop(job_name_in(name));
    if (words.json)
      print_json(ordered_json({{"stopping", job_name_in(name)}}), -1);
    else
      terminal::print("{}: asked to stop; it gets SIGTERM, and 120 s later SIGKILL\n",
                      job_name_in(name));
  }
  return 0;
}

// Hourly price of one instance of `type`, on which `job` ran.
double price_of(const ordered_json& prices, const std::string& file, const std::string& type,
                const std::string& job) {
  const auto price = prices.find(type);
  if (price == prices.end())
    throw Error(ErrorCode::not_found,
                fmt::format("{} has no price of {}, on which {} ran", file, type, job),
                "add it, in money an hour of one instance");
  SHOAL_CHECK(price->is_number() && price->get<double>() >= 0,
              "{}: the price of {} is {}; it must be a number, 0 or above", file, type,
              price->dump());
  return price->get<double>();
}

// Hourly price of one instance, for each of the job's groups; empty without prices.
std::vector<double> prices_of(const ordered_json& prices, const std::string& file,
                              const DescribedJob& job) {
  std::vector<double> all;
  if (!prices.is_null())
    for (const auto& group : job.instances)
      all.push_back(price_of(prices, file, group.type, job.name));
  return all;
}

// Cost of the job over all its instances; nullopt if unknown.
std::optional<double> money_of(const DescribedJob& job, const std::vector<double>& prices) {
  if (!job.billable_seconds || prices.empty()) return std::nullopt;
  double hourly = 0;
  for (std::size_t i = 0; i < prices.size(); ++i)
    hourly += prices[i] * static_cast<double>(job.instances[i].count);
  return static_cast<double>(*job.billable_seconds) / 3600 * hourly;
}

ordered_json groups_of(const DescribedJob& job, const std::vector<double>& prices) {
  auto groups = ordered_json::array();
  for (std::size_t i = 0; i < job.instances.size(); ++i)
    groups.push_back(
        {{"instance_type", job.instances[i].type},
         {"instance_count", job.instances[i].count},
         {"price_per_hour", prices.empty() ? ordered_json() : ordered_json(prices[i])}});
  return groups;
}

// Price of one instance; nullopt if groups have different prices.
std::optional<double> price_of_each(const std::vector<double>& prices) {
  const bool is_one = !prices.empty() && std::ranges::all_of(prices, [&](double price) {
    return price == prices.front();
  });
  return is_one ? std::optional(prices.front()) : std::nullopt;
}

int cost(const JobWords& words) {
  ordered_json prices;
  if (!words.prices.empty()) {
    prices = read_json_file(words.prices);
    SHOAL_CHECK(prices.is_object(), "{}: prices are an object, {{\"ml.p4d.24xlarge\": 37.7, ...}}",
                words.prices);
  }
  const TrainingJobs jobs = jobs_of(words);
  auto all = ordered_json::array();
  std::vector<std::vector<std::string>> rows = {{"NAME", "STATUS", "INSTANCES", "TRAINED s",
                                                 "BILLED s", "INSTANCE h", "COST", "SPOT SAVING",
                                                 "OF THE FIRST"}};
  std::optional<double> first;
  for (const std::string& name : words.names) {
    const DescribedJob job = jobs.describe(job_name_in(name));
    const auto seconds = job.billed_instance_seconds();
    const std::vector<double> each = prices_of(prices, words.prices, job);
    const auto money = money_of(job, each);
    std::optional<double> hours, share;
    if (seconds) hours = static_cast<double>(*seconds) / 3600;
    const auto measure = prices.is_null() ? hours : money;
    if (&name == &words.names.front()) first = measure;
    if (first && measure && *first > 0) share = *measure / *first;
    const auto saving = job.spot_saving_percent();
    const auto text = [](const std::optional<double>& value, const char* unit, int digits) {
      return value ? fmt::format("{:.{}f}{}", *value, digits, unit) : std::string("-");
    };
    rows.push_back({job.name, job.status, instances_of(job), text_of(job.training_seconds),
                    text_of(job.billable_seconds), text(hours, "", 3), text(money, "", 2),
                    text(saving, " %", 1), text(share, "", 3)});
    const auto value = [](const auto& optional) {
      return optional ? ordered_json(*optional) : ordered_json();
    };
    all.push_back({{"name", job.name},
                   {"status", job.status},
                   {"instance_type", job.instance_type},
                   {"instance_count", job.instance_count},
                   {"instances", groups_of(job, each)},
                   {"spot", job.spot},
                   {"training_seconds", value(job.training_seconds)},
                   {"billable_seconds", value(job.billable_seconds)},
                   {"instance_hours", value(hours)},
                   {"price_per_hour", value(price_of_each(each))},
                   {"cost", value(money)},
                   {"spot_saving_percent", value(saving)},
                   {"of_the_first", value(share)}});
  }
  if (words.json)
    print_json(all);
  else
    terminal::print("{}", table(rows));
  return 0;
}

int metrics(const JobWords& words) {
  const DescribedJob job = jobs_of(words).describe(job_name_in(words.names.front()));
  if (words.json) {
    auto all = ordered_json::array();
    for (const auto& metric : job.metrics)
      all.push_back({{"name", metric.name},
                     {"value", metric.value},
                     {"time", metric.time ? ordered_json(text_of(metric.time)) : ordered_json()}});
    print_json(all);
    return 0;
  }
  std::vector<std::vector<std::string>> rows = {{"METRIC", "VALUE", "TIME"}};
  for (const auto& metric : job.metrics)
    rows.push_back({metric.name, fmt::format("{:g}", metric.value), text_of(metric.time)});
  terminal::print("{}", table(rows));
  return 0;
}

}  // namespace

void add_jobs(CLI::App& app, Action& action) {
  auto* group = app.add_subcommand("jobs", "SageMaker training jobs: watch, stop, compare");
  group->require_subcommand(1);
  auto words = std::make_shared<JobWords>();
  const auto add = [&](const char* name, const char* help, int (*run)(const JobWords&)) {
    auto* command = group->add_subcommand(name, help);
    add_aws_words(*command, words->aws);
    command->add_flag("--json", words->json, "for programs");
    command->callback([&action, words, run] { action = [words, run] { return run(*words); }; });
    return command;
  };
  const auto one = [&](CLI::App* command) {
    command->add_option("job", words->names, "a name or an ARN")->required()->expected(1);
    return command;
  };
  const auto watches = [&](CLI::App* command) {
    command->add_option("--interval", words->watch.interval_seconds, "seconds between questions")
        ->check(from_to(0.01, 3600.0))
        ->capture_default_str();
    return command;
  };
  auto* listing = add("list", "The newest jobs", list);
  listing->add_option("--name-contains", words->filter.name_contains, "only such names");
  listing->add_option("--status", words->filter.status, "only such jobs")
      ->check(CLI::IsMember({"InProgress", "Completed", "Failed", "Stopping", "Stopped"}));
  listing->add_option("--max", words->filter.most, "at most so many")
      ->check(from_to(1, 100'000))
      ->capture_default_str();
  one(add("describe", "All about a job; --json: SageMaker's whole answer", describe));
  watches(one(add("attach",
                  "Follow a job to its end: status and log; exit status 1 unless it completed",
                  attach)))
      ->add_flag("--no-logs", words->no_logs, "status only");
  watches(one(add("logs", "Print the log of a job", logs)))
      ->add_flag("-f,--follow", words->follow, "go on until the job has ended");
  add("stop", "Stop jobs: SIGTERM, and 120 s later SIGKILL", stop)
      ->add_option("job", words->names, "names or ARNs")
      ->required();
  auto* costs = add("cost", "Compare the costs of jobs", cost);
  costs->add_option("job", words->names, "names or ARNs; the others are compared with the first")
      ->required();
  costs->add_option("--prices", words->prices,
                    "a JSON file, {\"ml.p4d.24xlarge\": 37.7, ...}: money an hour of an instance");
  one(add("metrics", "The last value of each of a job's metrics", metrics));
}

}  // namespace shoal::app
