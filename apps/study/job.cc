#include "study/job.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <optional>

#include "aws.h"
#include "job_output.h"
#include "study/run.h"
#include "submit_check.h"
#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/sagemaker/job/job.h"
#include "shoal/sagemaker/rest/training_jobs.h"

namespace shoal::app {
namespace {

using sagemaker::DescribedJob;

// The job that job.json names; nullopt: none, or it was not created, has failed or was stopped.
std::optional<DescribedJob> job_begun(const std::string& record,
                                      const sagemaker::TrainingJobs& jobs) {
  if (!path_exists(record)) return std::nullopt;
  try {
    DescribedJob job =
        jobs.describe(need_field<std::string>(read_json_file(record), "job", record));
    if (job.status != "Failed" && job.status != "Stopped") return job;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
  }
  return std::nullopt;
}

// The run's part comes first, because long names are cut.
std::string new_name(const StudyOptions& o, const StudyCell& cell) {
  std::string name =
      fmt::format("r{}-w{}-b{}-{}-{}", cell.ranks, cell.workers, cell.batch, cell.backend, o.name);
  std::ranges::replace_if(name, [](unsigned char c) { return std::isalnum(c) == 0; }, '-');
  return sagemaker::job_name_from(name, std::chrono::system_clock::now());
}

}  // namespace

StudyResult run_job(const StudyOptions& o, const StudyCell& cell, const Json& job,
                    const JobPlace& place, const std::string& directory) {
  make_directories(directory);
  AwsWords aws = place.aws;
  if (const auto region = field_or(job, "region", std::string(), o.job); !region.empty())
    aws.region = region;
  const sagemaker::Session session = session_of(aws);
  const sagemaker::TrainingJobs jobs(session.client(sagemaker::Service::sagemaker));
  const std::string record = directory + "/job.json";
  std::optional<DescribedJob> begun = job_begun(record, jobs);
  const std::string name = begun ? begun->name : new_name(o, cell);
  if (!begun) {
    Json named = job;
    named["job_name"] = name;
    write_file_atomically(record, Json({{"job", name}}).dump() + "\n");
    create_job(checked_job(named, place.directory, aws).job, place.directory, session, true);
  }
  terminal::print(stderr, "shoal study: waiting for the job {}\n", name);
  watch_job(session, name,
            {.status = false, .logs = false, .interval_seconds = place.interval_seconds});
  const DescribedJob ended = jobs.describe(name);
  if (ended.status != "Completed")
    throw Error(
        ErrorCode::unavailable,
        fmt::format("the run {} failed: the job {} is {}{}", cell.name(), name, ended.status,
                    ended.failure_reason.empty() ? "" : ": " + ended.failure_reason),
        "the same command starts it again");
  fetch_job_run(aws, name, directory);
  StudyResult result = measured(o, cell, report::read_run(directory));
  result.node_seconds = static_cast<double>(ended.billed_instance_seconds().value_or(0));
  return result;
}

}  // namespace shoal::app
