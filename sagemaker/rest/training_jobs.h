// Training jobs through SageMaker's API (CreateTrainingJob and related operations).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/sagemaker/rest/client.h"

namespace shoal::sagemaker {

struct StatusTransition {
  std::string status, message;
  std::optional<Moment> start, end;
};

// Selected fields of DescribeTrainingJob; `answer` has all of them.
struct DescribedJob {
  std::string name, arn;
  std::string status;               // InProgress, Completed, Failed, Stopping, Stopped
  std::string secondary_status;     // open set: Starting, Downloading, Training, Interrupted ...
  std::string failure_reason;       // "" without one
  std::string instance_type;        // "" with instance groups
  std::int64_t instance_count = 0;  // over all groups
  struct Instances {
    std::string type;
    std::int64_t count = 0;
  };
  std::vector<Instances> instances = {};  // one entry per group, or the only one
  bool spot = false;
  std::string model_artifacts;  // s3://..., "" until available
  std::optional<Moment> created, ended;
  std::optional<std::int64_t> training_seconds, billable_seconds;
  std::vector<StatusTransition> transitions = {};
  struct Metric {
    std::string name;
    double value = 0;
    std::optional<Moment> time;
  };
  std::vector<Metric> metrics = {};  // last value of each
  nlohmann::json answer;

  bool has_ended() const {
    return status == "Completed" || status == "Failed" || status == "Stopped";
  }
  // Billed instance-seconds; nullopt until SageMaker reports them.
  std::optional<std::int64_t> billed_instance_seconds() const;
  // (1 - billable / training) * 100, for spot jobs.
  std::optional<double> spot_saving_percent() const;
};
DescribedJob parse_described_job(const nlohmann::json& answer);

struct JobSummary {
  std::string name, arn, status;
  std::optional<Moment> created, ended;
};

struct JobFilter {
  std::string name_contains = {}, status = {};  // empty: any
  std::int64_t most = 100;                      // newest first
};

// Throws invalid_argument unless the name has 1 to 63 letters, digits and '-', without '-' at
// either end.
void check_job_name(std::string_view name);

class TrainingJobs {
 public:
  explicit TrainingJobs(ServiceClient client);

  // Sends a CreateTrainingJob request and returns the job's ARN. The API has no idempotency token.
  // If a request may have arrived (broken connection, HTTP 5xx), the job is looked up by name. If
  // such a job was created since the call began, its ARN is returned; otherwise the request is sent
  // again. If the lookup fails too, the error says so.
  std::string create(const nlohmann::json& request) const;
  DescribedJob describe(const std::string& name) const;  // throws not_found
  // Returns at once. SageMaker sends SIGTERM to the job, and SIGKILL after 120 s.
  void stop(const std::string& name) const;
  std::vector<JobSummary> list(const JobFilter& filter = {}) const;
  const ServiceClient& client() const { return client_; }

 private:
  std::optional<DescribedJob> find(const std::string& name) const;
  ServiceClient client_;
};

}  // namespace shoal::sagemaker
