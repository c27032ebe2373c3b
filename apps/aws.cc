#include "aws.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include "commands.h"
#include "core_files.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/sagemaker/rest/training_jobs.h"

namespace shoal::app {
namespace {

using nlohmann::ordered_json;
using sagemaker::DescribedJob;

void say(const ordered_json& event) { print_json(event, -1); }

std::string moment_text(const std::optional<sagemaker::Moment>& moment) {
  return moment ? sagemaker::extended_time(*moment) : "";
}

// Prints status changes and new log lines of one job.
class Watch {
 public:
  Watch(const sagemaker::Session& session, const std::string& name, const WatchOptions& options)
      : jobs_(session.client(sagemaker::Service::sagemaker)),
        log_(session.client(sagemaker::Service::logs), name),
        name_(name),
        options_(options) {}

  // Prints what changed since the last call and returns the job's current state.
  DescribedJob look() {
    DescribedJob job = jobs_.describe(name_);
    if (options_.status) print_transitions(job);
    // Read after the status: a job that has ended writes no more, so this reads its last lines.
    if (options_.logs)
      log_.read_new([this](const auto& events) { print_log(events, options_.json); });
    std::fflush(stdout);
    return job;
  }

  void print_end(const DescribedJob& job) const {
    if (options_.json) {
      ordered_json end = {{"event", "end"}, {"job", job.name}, {"status", job.status}};
      if (!job.failure_reason.empty()) end["failure_reason"] = job.failure_reason;
      if (job.billable_seconds) end["billable_seconds"] = *job.billable_seconds;
      if (!job.model_artifacts.empty()) end["model"] = job.model_artifacts;
      say(end);
      return;
    }
    if (!options_.status) return;
    terminal::print("{}: {}", job.name, job.status);
    if (job.training_seconds) terminal::print(" after {} s", *job.training_seconds);
    if (job.billable_seconds) terminal::print(", {} s billed", *job.billable_seconds);
    if (!job.failure_reason.empty()) terminal::print(": {}", job.failure_reason);
    terminal::print("\n");
    if (!job.model_artifacts.empty()) terminal::print("model: {}\n", job.model_artifacts);
  }

 private:
  void print_transitions(const DescribedJob& job) {
    for (; shown_ < job.transitions.size(); ++shown_) {
      const sagemaker::StatusTransition& step = job.transitions[shown_];
      if (options_.json)
        say({{"event", "status"},
             {"time", moment_text(step.start)},
             {"status", step.status},
             {"message", step.message}});
      else
        terminal::print("{} {}{}{}\n", moment_text(step.start), step.status,
                        step.message.empty() ? "" : ": ", step.message);
    }
  }
  sagemaker::TrainingJobs jobs_;
  sagemaker::JobLog log_;
  std::string name_;
  WatchOptions options_;
  std::size_t shown_ = 0;
};

}  // namespace

std::string region_of(const AwsWords& words) {
  return words.region.value_or(
      sagemaker::configured_region(sagemaker::process_environment(), words.profile).value_or(""));
}

sagemaker::Session session_of(const AwsWords& words) {
  forbid_core_files();  // the keys may come from a file, not only from the environment
  return sagemaker::Session(
      sagemaker::process_environment(),
      {.profile = words.profile, .region = words.region, .endpoint_url = words.endpoint_url});
}

std::string job_name_in(const std::string& text) {
  const auto slash = text.find(":training-job/");
  return text.starts_with("arn:") && slash != text.npos ? text.substr(slash + 14) : text;
}

void print_log(const std::vector<sagemaker::LogEvent>& events, bool json) {
  for (const sagemaker::LogEvent& event : events) {
    if (json)
      say({{"event", "log"},
           {"time", sagemaker::extended_time(event.time)},
           {"stream", event.stream},
           {"message", event.message}});
    else
      terminal::print("{} | {}\n", event.stream.substr(0, event.stream.rfind('-')), event.message);
  }
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += i + 1 < row.size() ? fmt::format("{:<{}}  ", row[i], widths[i]) : row[i];
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

int watch_job(const sagemaker::Session& session, const std::string& name,
              const WatchOptions& options) {
  Watch watch(session, name, options);
  auto last_answer = Clock::now();
  for (;;) {
    try {
      const DescribedJob job = watch.look();
      last_answer = Clock::now();
      if (job.has_ended()) {
        watch.print_end(job);
        return job.status == "Completed" ? 0 : 1;
      }
    } catch (const Error& error) {
      if (!sagemaker::may_pass(error) || seconds_since(last_answer) > options.patience_seconds)
        throw;
      log::warn("{}; the job goes on, and so does watching it", error.what());
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval_seconds));
  }
}

}  // namespace shoal::app
