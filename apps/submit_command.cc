// shoal submit JOB.json: creates a SageMaker training job, or summarizes it with --dry-run.
#include <memory>

#include "aws_words.h"
#include "command_line.h"
#include "commands.h"
#include "core_files.h"
#include "submit_check.h"
#include "submit_summary.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "shoal/runtime/base/terminal.h"
#include "shoal/sagemaker/job/secrets.h"

namespace shoal::app {
namespace {

int dry_run(const SubmitWords& words) {
  const CheckedJob checked = checked_job(words);
  if (words.json) {
    print_notices(checked.job);
    print_json(sagemaker::without_secrets(checked.job.request));
  } else {
    terminal::print("{}", summary_of(checked));
  }
  return 0;
}

}  // namespace

void add_submit(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "submit", "A SageMaker training job from a job file (docs/guides/sagemaker_jobs.md)");
  auto words = std::make_shared<SubmitWords>();
  command->add_option("job", words->path, "the job's JSON file")->required();
  command->add_option("--upload", words->upload,
                      "a directory of local data for the bucket of output_path: each folder in it "
                      "becomes a channel, files beside them the channel train; what is there "
                      "already is not sent again");
  command->add_flag("--dry-run", words->dry_run,
                    "check the file and print a summary of the job, or with --json the request, "
                    "secrets as ***; no network");
  command->add_flag("--wait", words->wait,
                    "follow the job's status to its end; exit status 1 unless it completed");
  command->add_flag("--logs", words->logs, "the same, with what the job writes");
  command->add_flag("--json", words->json,
                    "for programs: an object a line; with --dry-run, the request");
  command->add_option("--interval", words->interval_seconds, "seconds between questions")
      ->check(from_to(0.01, 3600.0))
      ->capture_default_str();
  add_aws_words(*command, words->aws);
  command->callback([&action, words] {
    action = [words] {
      forbid_core_files();  // a job file may contain a git password
      return words->dry_run ? dry_run(*words) : submit_job(*words);
    };
  });
}

}  // namespace shoal::app
