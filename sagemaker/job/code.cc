// Source and upload location of a job's code.
#include <fmt/format.h>

#include "shoal/runtime/base/shortened.h"
#include "shoal/sagemaker/job/images.h"
#include "shoal/sagemaker/job/parts.h"
#include "shoal/sagemaker/job/secrets.h"

namespace shoal::sagemaker {
namespace {

std::optional<GitSource> read_git(Draft& draft, const SourceCode& code) {
  auto fields = draft.job.object("git_config", /*secret=*/true);
  if (!fields) return std::nullopt;
  GitSource git;
  git.repository = fields->text("repo", {.min = 1}).value_or("");
  git.branch = fields->text("branch", {.min = 1}).value_or("");
  git.commit = fields->text("commit", {.min = 1}).value_or("");
  git.username = fields->text("username").value_or("");
  git.password = fields->text("password").value_or("");
  git.token = fields->text("token").value_or("");
  static_cast<void>(fields->boolean("2FA_enabled"));
  fields->finish();
  if (!fields->has("repo")) fields->problem("repo", "is needed");
  bool is_known = git.repository.empty();
  for (const char* scheme : {"https://", "http://", "ssh://", "git@", "file://"})
    is_known = is_known || git.repository.starts_with(scheme);
  if (!is_known) fields->problem("repo", "begins with none of https://, ssh://, git@, file://");
  if (git.repository.starts_with("http") && git.repository.find('@') != std::string::npos)
    fields->problem("repo", "has a name or password in it; give username, password or token");
  else if (has_password(git.repository))
    fields->problem("repo", "has a password in it, which git's command line would show; use a key");
  for (const auto& [name, text] :
       {std::pair{"username", git.username}, {"password", git.password}, {"token", git.token}})
    if (!text.empty() && !git.repository.empty() && !git.repository.starts_with("https://"))
      fields->problem(name, "is carried by https:// only, and repo is no such URL");
  for (const auto& [name, text] : {std::pair{"branch", git.branch}, {"commit", git.commit}})
    if (text.starts_with('-')) fields->problem(name, "begins with a dash");
  if (code.entry_point.starts_with('/') || code.source_dir.starts_with('/'))
    fields->problem("", "needs paths of entry_point and source_dir inside the repository");
  return git;
}

}  // namespace

std::pair<std::string, std::string> split_s3(std::string_view uri) {
  uri.remove_prefix(std::min(uri.size(), uri.find("://") + 3));
  const auto slash = uri.find('/');
  const std::string bucket(uri.substr(0, slash));
  std::string_view prefix = slash == uri.npos ? std::string_view() : uri.substr(slash + 1);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  return {bucket, std::string(prefix)};
}

std::optional<SourceCode> add_code(Draft& draft, Json& hyperparameters) {
  Fields& job = draft.job;
  SourceCode code;
  code.entry_point = job.text("entry_point", {.min = 1}).value_or("");
  code.source_dir = job.text("source_dir", {.min = 1}).value_or("");
  code.dependencies = job.texts("dependencies", 0, 100, {.min = 1}).value_or(code.dependencies);
  code.git = read_git(draft, code);
  const auto location = job.text("code_location", s3_rules());
  const std::int64_t level = job.integer("container_log_level", 0, 100).value_or(20);
  const bool is_remote = code.source_dir.starts_with("s3://");
  if (code.entry_point.starts_with("s3://"))
    job.problem("entry_point",
                "is in S3; give the archive it is in as source_dir, and its name here");
  if (code.entry_point.empty()) {
    for (const char* name : {"source_dir", "dependencies", "git_config", "code_location"})
      if (job.has(name))
        job.problem(name, "needs entry_point beside it: the run's JSON file, or a Python script");
    return std::nullopt;
  }
  if (const std::string why = why_not_run(draft.machines.image_uri, code.entry_point);
      !why.empty() && !job.has("container_entry_point"))
    draft.notices.push_back(
        fmt::format("entry_point is {}, but {}", shortened(code.entry_point), why));
  if (is_remote && !code.source_dir.ends_with(".tar.gz"))
    job.problem("source_dir", "in S3 must be an archive, sourcedir.tar.gz");
  if (is_remote && code.git) job.problem("git_config", "has no effect on a source_dir in S3");

  // As in the SDK, the code goes to code_location, by default to the top of output_path's bucket.
  const auto [bucket, prefix] = split_s3(location ? *location : draft.output_path);
  const std::string folder = location && !prefix.empty() ? prefix + "/" : std::string();
  code.upload_to = fmt::format("s3://{}/{}{}/source/sourcedir.tar.gz", bucket, folder, draft.name);
  if (bucket == split_s3(draft.output_path).first)
    code.kms_key = job.text("output_kms_key").value_or("");
  const std::string uri = is_remote ? code.source_dir : code.upload_to;
  if (draft.network_isolation) {
    draft.request["InputDataConfig"].push_back(
        {{"DataSource",
          {{"S3DataSource",
            {{"S3DataType", "S3Prefix"},
             {"S3Uri", uri},
             {"S3DataDistributionType", "FullyReplicated"}}}}},
         {"ChannelName", "code"}});
    hyperparameters["sagemaker_submit_directory"] = "/opt/ml/input/data/code/sourcedir.tar.gz";
  } else {
    hyperparameters["sagemaker_submit_directory"] = uri;
  }
  // Without source_dir the file is at the top of the archive.
  const auto slash = code.entry_point.rfind('/');
  hyperparameters["sagemaker_program"] = code.source_dir.empty() && slash != std::string::npos
                                             ? code.entry_point.substr(slash + 1)
                                             : code.entry_point;
  hyperparameters["sagemaker_container_log_level"] = level;
  hyperparameters["sagemaker_job_name"] = draft.name;
  hyperparameters["sagemaker_region"] = draft.region;
  return is_remote ? std::nullopt : std::optional(code);
}

}  // namespace shoal::sagemaker
