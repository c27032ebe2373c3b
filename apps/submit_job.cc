// The part of `shoal submit` that uses the network.
#include <cstdio>

#include "aws.h"
#include "commands.h"
#include "submit_check.h"
#include "submit_upload.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/scratch_directory.h"
#include "shoal/sagemaker/job/job.h"
#include "shoal/sagemaker/job/source.h"
#include "shoal/sagemaker/rest/training_jobs.h"

namespace shoal::app {
namespace {

void upload(const sagemaker::SourceCode& code, const std::string& directory,
            const sagemaker::Session& session, bool quiet) {
  const ScratchDirectory scratch;
  const std::string archive = scratch / "sourcedir.tar.gz";
  sagemaker::pack_source(code, directory, archive);
  const auto source = open_file(archive);
  session.s3().upload(sagemaker::parse_s3_name(code.upload_to), *source,
                      {.put = {.content_type = "application/gzip", .kms_key_id = code.kms_key}});
  if (!quiet) terminal::print("code: {} ({} bytes)\n", code.upload_to, source->size());
}

}  // namespace

std::string create_job(const sagemaker::TrainingJob& job, const std::string& directory,
                       const sagemaker::Session& session, bool quiet) {
  if (job.code) upload(*job.code, directory, session, quiet);
  const sagemaker::TrainingJobs jobs(session.client(sagemaker::Service::sagemaker));
  return jobs.create(nlohmann::json(job.request));
}

int submit_job(const SubmitWords& words) {
  const CheckedJob checked = checked_job(words);
  const sagemaker::TrainingJob& job = checked.job;
  print_notices(job);
  AwsWords place = words.aws;
  place.region = job.region;
  const sagemaker::Session session = session_of(place);
  upload_data(checked.data, job, session, words.json);
  const std::string arn = create_job(job, directory_of(words.path), session, words.json);
  if (words.json)
    print_json({{"event", "created"}, {"job", job.name}, {"region", job.region}, {"arn", arn}}, -1);
  else
    terminal::print("job: {} in {} ({})\n", job.name, job.region, arn);
  std::fflush(stdout);
  if (!words.wait && !words.logs) return 0;
  return watch_job(
      session, job.name,
      {.logs = words.logs, .json = words.json, .interval_seconds = words.interval_seconds});
}

}  // namespace shoal::app
