#include "shoal/sagemaker/rest/logs.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "shoal/runtime/io/json_fields.h"
#include "shoal/sagemaker/rest/training_jobs.h"

namespace shoal::sagemaker {
namespace {

using nlohmann::json;
constexpr const char* kAnswer = "CloudWatch's answer";
constexpr const char* kGroup = "/aws/sagemaker/TrainingJobs";
constexpr const char* kTarget = "Logs_20140328";

}  // namespace

JobLog::JobLog(ServiceClient logs, std::string job) : logs_(std::move(logs)), job_(std::move(job)) {
  check_job_name(job_);
}

void JobLog::find_streams() {
  json arguments = {{"logGroupName", kGroup}, {"logStreamNamePrefix", job_ + "/"}, {"limit", 50}};
  for (;;) {
    json answer;
    try {
      answer = logs_.call_json(kTarget, "DescribeLogStreams", arguments);
    } catch (const ServiceError& error) {
      if (!error.is_missing()) throw;
      return;  // the log group does not exist before the account's first job
    }
    for (const json& stream : field_or(answer, "logStreams", json(json::array()), kAnswer))
      if (const std::string name = text_at(stream, "logStreamName"); name.starts_with(job_ + "/"))
        tokens_.emplace(name, "");
    const std::string token = text_at(answer, "nextToken");
    if (token.empty()) return;
    arguments["nextToken"] = token;
  }
}

void JobLog::read_new(const std::function<void(const std::vector<LogEvent>&)>& sink) {
  find_streams();
  // Reads one page per stream in turns, so that lines of different hosts stay close together.
  std::vector<std::string> open;
  for (const auto& [stream, token] : tokens_) open.push_back(stream);
  while (!open.empty()) {
    std::vector<LogEvent> events;
    std::erase_if(open, [&](const std::string& stream) {
      std::string& token = tokens_[stream];
      json arguments = {{"logGroupName", kGroup},
                        {"logStreamName", stream},
                        {"startFromHead", true},
                        {"limit", 10'000}};
      if (!token.empty()) arguments["nextToken"] = token;
      const json answer = logs_.call_json(kTarget, "GetLogEvents", arguments);
      for (const json& event : field_or(answer, "events", json(json::array()), kAnswer))
        events.push_back({stream.substr(job_.size() + 1),
                          from_epoch(field_or(event, "timestamp", 0.0, kAnswer) / 1e3),
                          text_at(event, "message")});
      const std::string next = text_at(answer, "nextForwardToken");
      const bool is_end = next.empty() || next == token;
      if (!next.empty()) token = next;
      return is_end;
    });
    std::stable_sort(events.begin(), events.end(),
                     [](const LogEvent& a, const LogEvent& b) { return a.time < b.time; });
    if (!events.empty()) sink(events);
  }
}

}  // namespace shoal::sagemaker
