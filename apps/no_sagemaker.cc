// Replaces aws.cc, job_output.cc, jobs_command.cc, sources.cc, study/job.cc and submit_job.cc in
// builds without libcurl or pugixml.
#include <cstdlib>

#include "aws_words.h"
#include "commands.h"
#include "hub.h"
#include "job_output.h"
#include "sources.h"
#include "study/job.h"
#include <CLI/CLI.hpp>

#include "shoal/runtime/base/error.h"

namespace shoal::app {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::unavailable,
              what + ": this build has no client of SageMaker, S3 and the Hub",
              "install libcurl4-openssl-dev and libpugixml-dev, and build with SHOAL_SAGEMAKER=ON");
}

}  // namespace

void add_jobs(CLI::App& app, Action& action) {
  auto* group = app.add_subcommand("jobs", "SageMaker training jobs (not in this build)");
  group->allow_extras();
  group->callback([&action] { action = []() -> int { refuse("shoal jobs"); }; });
}

std::string region_of(const AwsWords& words) {
  if (words.region) return *words.region;
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  return {};
}

std::string fetch_model(const std::string& name) { refuse("allow_download of " + name); }

int submit_job(const SubmitWords& /*words*/) { refuse("shoal submit without --dry-run"); }

void fetch_job_run(const AwsWords& /*words*/, const std::string& /*job*/,
                   const std::string& /*directory*/) {
  refuse("a report of a job");
}

StudyResult run_job(const StudyOptions& /*options*/, const StudyCell& /*cell*/, const Json& /*job*/,
                    const JobPlace& /*place*/, const std::string& /*directory*/) {
  refuse("a study of jobs");
}

command::Finding s3_finding() {
  return {"S3", "not in this build", false,
          "s3:// and SageMaker (-DSHOAL_SAGEMAKER=ON, with libcurl and pugixml)"};
}

void add_sources(SourceRegistry& registry) {
  registry.add(
      "s3", [](const std::string& uri) -> std::shared_ptr<ByteSource> { refuse(uri); },
      [](const std::string& prefix) -> std::vector<std::string> { refuse(prefix); });
}

}  // namespace shoal::app
