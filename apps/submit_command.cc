// shoal submit JOB.json --dry-run: the request that would create the job.
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "commands.h"
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

int dry_run(const std::string& path) {
  const sagemaker::TrainingJob job = sagemaker::make_training_job(
      sagemaker::read_job_file(path),
      {.region = region_of_environment(), .account = {}, .now = std::chrono::system_clock::now()});
  if (job.code) sagemaker::check_source(*job.code, directory_of(path));
  for (const std::string& notice : job.notices) fmt::print(stderr, "shoal submit: {}\n", notice);
  fmt::print("{}\n", job.request.dump(2));
  return 0;
}

}  // namespace

void add_submit(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "submit", "A SageMaker training job from a job file (docs/sagemaker_jobs.md)");
  auto path = std::make_shared<std::string>();
  command->add_option("job", *path, "the job's JSON file")->required();
  auto dry = std::make_shared<bool>(false);
  command->add_flag("--dry-run", *dry, "check the file and print the request; no network")
      ->required();
  command->callback([&action, path, dry] { action = [path] { return dry_run(*path); }; });
}

}  // namespace shoal::app
