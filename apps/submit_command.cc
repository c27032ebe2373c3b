// shoal submit JOB.json: creates a SageMaker training job, or, with --dry-run, prints the request
// that would.
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "aws_words.h"
#include "commands.h"
#include "core_files.h"
#include "submit_check.h"
#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/sagemaker/job/job.h"
#include "shoal/sagemaker/job/source.h"

namespace shoal::app {
namespace {

std::string region_of_environment() {
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  return {};
}

// Paths in a job file are relative to where it lies, wherever this runs.
std::string directory_of(const std::string& path) {
  return std::filesystem::absolute(path).parent_path().string();
}

int dry_run(const SubmitWords& words) {
  sagemaker::TrainingJob job =
      sagemaker::make_training_job(sagemaker::read_job_file(words.path),
                                   {.region = words.aws.region.value_or(region_of_environment()),
                                    .is_region_asked = words.aws.region.has_value(),
                                    .account = {},
                                    .now = std::chrono::system_clock::now()});
  if (job.code) sagemaker::check_source(*job.code, directory_of(words.path));
  check_run(job, directory_of(words.path));
  for (const std::string& notice : job.notices) fmt::print(stderr, "shoal submit: {}\n", notice);
  fmt::print("{}\n", job.request.dump(2));
  return 0;
}

}  // namespace

void add_submit(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "submit", "A SageMaker training job from a job file (docs/sagemaker_jobs.md)");
  auto words = std::make_shared<SubmitWords>();
  command->add_option("job", words->path, "the job's JSON file")->required();
  command->add_flag("--dry-run", words->dry_run,
                    "check the file and print the request; no network");
  command->add_flag("--wait", words->wait,
                    "follow the job's status to its end; exit status 1 unless it completed");
  command->add_flag("--logs", words->logs, "the same, with what the job writes");
  command->add_flag("--json", words->json, "for programs: an object a line");
  command->add_option("--interval", words->interval_seconds, "seconds between questions")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str();
  add_aws_words(*command, words->aws);
  command->callback([&action, words] {
    action = [words] {
      forbid_core_files();  // a job file may hold a password of git
      return words->dry_run ? dry_run(*words) : submit_job(*words);
    };
  });
}

}  // namespace shoal::app
