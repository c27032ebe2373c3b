#include "shoal/sagemaker/rest/training_jobs.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::sagemaker {
namespace {

constexpr std::chrono::minutes kClocksDiffer{5};
constexpr std::int64_t kMostCounted = INT32_MAX;  // so that products of two counts fit

using nlohmann::json;

std::optional<Moment> moment_at(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return from_epoch(found->get<double>());
}

std::optional<std::int64_t> count_at(const json& object, const char* key) {
  const auto found = object.find(key);
  const auto count = found == object.end() ? std::nullopt : integer_in<std::int64_t>(*found);
  return count ? std::optional(std::clamp(*count, std::int64_t{0}, kMostCounted)) : std::nullopt;
}

json object_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? *found : json::object();
}

json array_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : json::array();
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool is_of_name(char c) { return is_letter(c) || c == '-'; }

}  // namespace

void check_job_name(std::string_view name) {
  const bool fits = !name.empty() && name.size() <= 63 && is_letter(name.front()) &&
                    is_letter(name.back()) && std::all_of(name.begin(), name.end(), is_of_name);
  SHOAL_CHECK(fits,
              "'{}' is no name of a training job: 1 to 63 letters, digits and '-', none of the "
              "latter at either end",
              name.substr(0, 80));
}

std::optional<std::int64_t> DescribedJob::billed_instance_seconds() const {
  if (!billable_seconds) return std::nullopt;
  return *billable_seconds * std::max<std::int64_t>(instance_count, 1);
}

std::optional<double> DescribedJob::spot_saving_percent() const {
  if (!spot || !billable_seconds || !training_seconds || *training_seconds <= 0)
    return std::nullopt;
  return (1 - static_cast<double>(*billable_seconds) / static_cast<double>(*training_seconds)) *
         100;
}

DescribedJob parse_described_job(const json& answer) {
  if (!answer.is_object() || text_at(answer, "TrainingJobStatus").empty())
    throw Error(ErrorCode::corrupt_data,
                "SageMaker DescribeTrainingJob: the answer has no TrainingJobStatus");
  const json resources = object_at(answer, "ResourceConfig");
  DescribedJob job{
      .name = text_at(answer, "TrainingJobName"),
      .arn = text_at(answer, "TrainingJobArn"),
      .status = text_at(answer, "TrainingJobStatus"),
      .secondary_status = text_at(answer, "SecondaryStatus"),
      .failure_reason = text_at(answer, "FailureReason"),
      .instance_type = text_at(resources, "InstanceType"),
      .instance_count = count_at(resources, "InstanceCount").value_or(0),
      .model_artifacts = text_at(object_at(answer, "ModelArtifacts"), "S3ModelArtifacts"),
      .created = moment_at(answer, "CreationTime"),
      .ended = moment_at(answer, "TrainingEndTime"),
      .training_seconds = count_at(answer, "TrainingTimeInSeconds"),
      .billable_seconds = count_at(answer, "BillableTimeInSeconds"),
      .answer = answer};
  if (!job.instance_type.empty()) job.instances = {{job.instance_type, job.instance_count}};
  for (const json& group : array_at(resources, "InstanceGroups")) {
    job.instances.push_back(
        {text_at(group, "InstanceType"), count_at(group, "InstanceCount").value_or(0)});
    job.instance_count = std::min(job.instance_count + job.instances.back().count, kMostCounted);
  }
  const auto spot = answer.find("EnableManagedSpotTraining");
  job.spot = spot != answer.end() && spot->is_boolean() && spot->get<bool>();
  for (const json& step : array_at(answer, "SecondaryStatusTransitions"))
    job.transitions.push_back({text_at(step, "Status"), text_at(step, "StatusMessage"),
                               moment_at(step, "StartTime"), moment_at(step, "EndTime")});
  for (const json& metric : array_at(answer, "FinalMetricDataList"))
    if (const auto value = metric.find("Value"); value != metric.end() && value->is_number())
      job.metrics.push_back(
          {text_at(metric, "MetricName"), value->get<double>(), moment_at(metric, "Timestamp")});
  return job;
}

TrainingJobs::TrainingJobs(ServiceClient client) : client_(std::move(client)) {}

std::optional<DescribedJob> TrainingJobs::find(const std::string& name) const {
  try {
    return describe(name);
  } catch (const ServiceError& error) {
    if (!error.is_missing()) throw;
    return std::nullopt;
  }
}

std::string TrainingJobs::create(const json& request) const {
  const std::string name = text_at(request, "TrainingJobName");
  check_job_name(name);
  const Moment start = client_.wire().now();
  // True if the job was created since the call began, by the service's clock.
  const auto is_ours = [&](const DescribedJob& job) {
    const auto took = client_.wire().now() - start;
    return !job.created || *job.created >= client_.now() - took - kClocksDiffer;
  };
  const auto look = [&]() -> std::optional<DescribedJob> {
    try {
      return find(name);
    } catch (const Error& error) {
      throw Error(
          error.code(),
          fmt::format("it is not known whether {} was created, and looking failed: {}", name,
                      error.what()),
          fmt::format("look with `shoal jobs describe {}` before you submit it again", name));
    }
  };
  const RetryOptions& retry = client_.wire().retry;
  bool doubtful = false;
  for (int attempt = 1;; ++attempt) {
    try {
      const json answer =
          client_.call_json("SageMaker", "CreateTrainingJob", request, /*repeatable=*/false);
      return text_at(answer, "TrainingJobArn");
    } catch (const Error& error) {
      const auto* refused = dynamic_cast<const ServiceError*>(&error);
      // The name is taken, perhaps by our own request whose answer was lost.
      const bool taken = refused != nullptr && refused->service_code() == "ResourceInUse";
      if (!may_have_been_done(error) && !(taken && doubtful)) throw;
      doubtful = true;
      log::warn("{}; looking whether {} was created", error.what(), name);
      const auto job = look();
      if (job && is_ours(*job)) return job->arn;
      if (job || taken || attempt >= retry.attempts) throw;
      retry.wait(attempt + 1, nullptr);
    }
  }
}

DescribedJob TrainingJobs::describe(const std::string& name) const {
  check_job_name(name);
  return parse_described_job(
      client_.call_json("SageMaker", "DescribeTrainingJob", {{"TrainingJobName", name}}));
}

void TrainingJobs::stop(const std::string& name) const {
  check_job_name(name);
  client_.call_json("SageMaker", "StopTrainingJob", {{"TrainingJobName", name}});
}

std::vector<JobSummary> TrainingJobs::list(const JobFilter& filter) const {
  SHOAL_CHECK(filter.most >= 1, "{} jobs are to be listed; at least 1", filter.most);
  std::vector<JobSummary> jobs;
  json arguments = {{"SortBy", "CreationTime"}, {"SortOrder", "Descending"}};
  if (!filter.name_contains.empty()) {
    SHOAL_CHECK(
        filter.name_contains.size() <= 63 &&
            std::all_of(filter.name_contains.begin(), filter.name_contains.end(), is_of_name),
        "'{}' is in no name of a training job: letters, digits and '-', at most 63",
        filter.name_contains.substr(0, 80));
    arguments["NameContains"] = filter.name_contains;
  }
  if (!filter.status.empty()) arguments["StatusEquals"] = filter.status;
  for (;;) {
    const std::int64_t left = filter.most - std::ssize(jobs);
    arguments["MaxResults"] = std::min<std::int64_t>(left, 100);
    const json answer = client_.call_json("SageMaker", "ListTrainingJobs", arguments);
    for (const json& entry : array_at(answer, "TrainingJobSummaries"))
      if (std::ssize(jobs) < filter.most)
        jobs.push_back({text_at(entry, "TrainingJobName"), text_at(entry, "TrainingJobArn"),
                        text_at(entry, "TrainingJobStatus"), moment_at(entry, "CreationTime"),
                        moment_at(entry, "TrainingEndTime")});
    const std::string token = text_at(answer, "NextToken");
    if (token.empty() || std::ssize(jobs) >= filter.most) return jobs;
    arguments["NextToken"] = token;
  }
}

}  // namespace shoal::sagemaker
