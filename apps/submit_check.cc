#include "submit_check.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "commands.h"
#include "submit_inputs.h"
#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/sagemaker/container/command.h"
#include "shoal/sagemaker/job/images.h"
#include "shoal/sagemaker/job/instances.h"
#include "shoal/sagemaker/job/source.h"
#include "shoal/train/command/needs.h"

namespace shoal::app {
namespace {

using sagemaker::Json;

// The options that `shoal train` gets. SageMaker passes the hyperparameters to the container, and
// the container passes them to the command.
Json run_options(const Json& request) {
  OrderedFields options;
  if (const Json* const given = find_field(request, "HyperParameters"))
    for (const auto& [name, text] : given->items())
      if (!name.starts_with("sagemaker_"))
        options[name] = parse_ordered_json(text.get<std::string>(), "hyperparameter " + name);
  return std::move(options).json();
}

// The name of the entry point; empty if there is none.
std::string entry_point_of(const sagemaker::TrainingJob& job) {
  const Json options = find_field(job.request, "HyperParameters") == nullptr
                           ? Json::object()
                           : job.request["HyperParameters"];
  const Json* const program = find_field(options, "sagemaker_program");
  if (program == nullptr) return {};
  const Json name = parse_ordered_json(program->get<std::string>(), "sagemaker_program");
  return field_as<std::string>(name, "sagemaker_program", "/hyperparameters");
}

// Appends "--name=value" for each option that decides which models and data the run reads. Options
// may be nested in sections.
void add_words_of_paths(const Json& options, std::vector<std::string>& words) {
  static constexpr std::array kNames = {"model_name_or_path",
                                        "model",
                                        "model_name",
                                        "model_type",
                                        "config_name",
                                        "tokenizer_name",
                                        "train_file",
                                        "validation_file",
                                        "eval_file",
                                        "test_file",
                                        "validation_mismatched_file",
                                        "test_mismatched_file",
                                        "data",
                                        "dataset_name",
                                        "resume_from_checkpoint",
                                        "task",
                                        "streaming",
                                        "allow_download",
                                        "do_train",
                                        "do_predict"};
  for (const auto& [name, value] : options.items()) {
    std::string plain = name;
    std::ranges::replace(plain, '-', '_');
    if (value.is_object()) add_words_of_paths(value, words);
    if (!value.is_string() && !value.is_boolean()) continue;
    if (std::ranges::find(kNames, plain) == kNames.end()) continue;
    words.push_back("--" + plain + "=" +
                    (value.is_string() ? value.get<std::string>() : value.dump()));
  }
}

std::string with_paths(std::string text) {
  const std::string source = "command line --";
  for (auto at = text.find(source); at != std::string::npos; at = text.find(source, at))
    text.replace(at, source.size(), "/hyperparameters/");
  return text;
}

// Reports options that need features the instance lacks.
void check_instance(const Json& resources, const std::string& path,
                    const command::TrainNeeds& needs, sagemaker::Problems& problems) {
  const Json* const name = find_field(resources, "InstanceType");
  if (name == nullptr) return;
  const auto type = sagemaker::find_instance_type(name->get<std::string>());
  if (!needs.bf16 || !needs.gpu || !type || type->accelerator != sagemaker::Accelerator::cuda ||
      type->capability == 0 || type->capability >= 80)
    return;
  problems.add(
      path + "/instance_type",
      fmt::format("{} has {} GPUs (compute capability {}.{}), which have no bf16, and the run's "
                  "options set it; set fp16 instead, in the entry point's file, hyperparameters or "
                  "mp_parameters",
                  type->name, type->gpu, type->capability / 10, type->capability % 10));
}

// Reports an image that cannot run the job, and notes one that may not.
void check_image(sagemaker::TrainingJob& job, const std::string& image,
                 sagemaker::Problems& problems) {
  const std::string entry = entry_point_of(job);
  if (sagemaker::shoal_build(image)) {
    if (image.find(":" SHOAL_VERSION "-") == std::string::npos)
      job.notices.push_back(fmt::format(
          "image {} is of another version than this shoal ({}): the run's options, model and data "
          "are not checked",
          shortened(image), SHOAL_VERSION));
    return;
  }
  if (!sagemaker::is_amazons_image(image)) {
    job.notices.push_back(
        fmt::format("whether image {} runs Shoal cannot be seen from its name (Shoal's end with "
                    "shoal:{}-cuda12, "
                    "-cuda13 or -cpu): the run's options, model and data are not checked",
                    shortened(image), SHOAL_VERSION));
    return;
  }
  if (entry.ends_with(".py") || entry.ends_with(".sh"))
    job.notices.push_back(fmt::format(
        "image {} is Amazon's: it runs {} with Amazon's libraries, and Shoal is not in it", image,
        entry));
  else
    problems.add(
        "/image_uri",
        fmt::format("{} is Amazon's image, which does not run Shoal{}; give an image of Shoal "
                    "(docker/), or a Python entry_point",
                    image, entry.empty() ? "" : fmt::format(", and so not {}", entry)));
}

std::int64_t hosts_of(const Json& request) {
  const Json* const resources = find_field(request, "ResourceConfig");
  if (resources == nullptr) return 1;
  std::int64_t hosts = field_or<std::int64_t>(*resources, "InstanceCount", 0, "ResourceConfig");
  if (const Json* const groups = find_field(*resources, "InstanceGroups"))
    for (const Json& group : *groups)
      hosts += field_or<std::int64_t>(group, "InstanceCount", 0, "InstanceGroups");
  return hosts;
}

// Refuses jobs that the container of Shoal's image would end (sagemaker/container/command.cc).
void check_container(const sagemaker::TrainingJob& job, const std::string& image,
                     const std::string& entry, sagemaker::Problems& problems) {
  if (const std::string why = sagemaker::why_not_run(image, entry); !entry.empty() && !why.empty())
    problems.add("/entry_point", fmt::format("is {}, but {}: the job would end at its start",
                                             shortened(entry), why));
  if (entry.ends_with(".py")) return;  // a script reads its channels itself
  const Json* const channels = find_field(job.request, "InputDataConfig");
  if (channels == nullptr || hosts_of(job.request) < 2) return;
  for (const Json& channel : *channels) {
    const Json* const source = find_field(channel, "DataSource");
    const Json* const s3 = source == nullptr ? nullptr : find_field(*source, "S3DataSource");
    if (s3 != nullptr &&
        field_or(*s3, "S3DataDistributionType", std::string(), "a channel") == "ShardedByS3Key")
      problems.add(
          fmt::format("/inputs/{}/distribution",
                      field_or(channel, "ChannelName", std::string(), "")),
          "ShardedByS3Key gives each host other files, but all ranks of `shoal train` read the "
          "same: the job would end at its start; use FullyReplicated, or no channel and in "
          "hyperparameters streaming, train_file s3://... and shard_by_rank");
  }
}

// Checks options, code, model and data if Shoal's image of this version runs the job.
void check_run(CheckedJob& checked, const std::string& directory, sagemaker::Problems& problems) {
  sagemaker::TrainingJob& job = checked.job;
  const Json* const algorithm = find_field(job.request, "AlgorithmSpecification");
  const Json* const uri = algorithm == nullptr ? nullptr : find_field(*algorithm, "TrainingImage");
  if (uri == nullptr || algorithm->contains("ContainerEntrypoint")) return;
  const auto image = uri->get<std::string>();
  check_image(job, image, problems);
  if (!sagemaker::shoal_build(image) || image.find(":" SHOAL_VERSION "-") == std::string::npos)
    return;
  const std::string entry = entry_point_of(job);
  check_container(job, image, entry, problems);
  if (entry.ends_with(".py")) return;  // only the script knows its arguments and its data
  const Json options = run_options(job.request);
  std::vector<std::string> words;
  // True if all options are known: an entry point in git or S3 may have more.
  bool is_whole = entry.empty();
  std::optional<Json> file_options;
  if (job.code && !job.code->git && job.code->entry_point.ends_with(".json")) {
    const std::string file =
        (std::filesystem::path(directory) / job.code->source_dir / job.code->entry_point).string();
    try {
      if (is_regular_file(file)) {
        words.push_back(file);
        file_options = ordered_json_if_valid(read_text_file(file));
      }
    } catch (const Error&) {
      file_options = std::nullopt;  // check_source() or check_train_words() reports it
    }
    is_whole = file_options.has_value() && file_options->is_object();
  } else if (entry.ends_with(".json")) {
    job.notices.push_back(fmt::format(
        "the code is in {}, which is not read before the job starts: the options in {}, "
        "and what they name, are not checked",
        job.code ? "git (git_config)" : "S3", shortened(entry)));
  }
  const std::vector<std::string> given = sagemaker::option_words(options);
  words.insert(words.end(), given.begin(), given.end());
  command::TrainNeeds needs;
  try {
    needs = command::check_train_words(words);
  } catch (const Error& error) {
    Error placed(error.code(), with_paths(error.message()), error.remedy());
    problems.add("", placed.what());
    // Still check the model and the data.
    std::vector<std::string> paths;
    if (is_whole && file_options) add_words_of_paths(*file_options, paths);
    add_words_of_paths(options, paths);
    try {
      needs = command::check_train_words(paths);
    } catch (const Error&) {
      return;  // the path options are among the errors
    }
  }
  checked.task = needs.task;
  check_inputs(job, needs, is_whole, directory, problems);
  if (sagemaker::shoal_build(image) == sagemaker::ShoalBuild::cpu) return;
  const Json* const resources = find_field(job.request, "ResourceConfig");
  if (resources == nullptr) return;
  check_instance(*resources, "", needs, problems);
  if (const Json* const groups = find_field(*resources, "InstanceGroups"))
    for (std::size_t i = 0; i < groups->size(); ++i)
      check_instance((*groups)[i], fmt::format("/instance_groups/{}", i), needs, problems);
}

}  // namespace

std::string directory_of(const std::string& path) {
  return std::filesystem::absolute(path).parent_path().string();
}

CheckedJob checked_job(const Json& file, const std::string& directory, const AwsWords& aws,
                       const LocalData& data) {
  sagemaker::Problems problems;
  CheckedJob checked;
  checked.data = data;
  std::vector<sagemaker::UploadedChannel> uploads;
  for (const LocalChannel& channel : data.channels) uploads.push_back({channel.name, channel.key});
  checked.job = sagemaker::make_training_job(file,
                                             {.region = region_of(aws),
                                              .is_region_asked = aws.region.has_value(),
                                              .now = std::chrono::system_clock::now(),
                                              .uploads = uploads},
                                             problems);
  for (const std::string& notice : data.notices) checked.job.notices.push_back(notice);
  if (checked.job.code) sagemaker::check_source(*checked.job.code, directory, problems);
  check_run(checked, directory, problems);
  problems.check();
  return checked;
}

CheckedJob checked_job(const SubmitWords& words) {
  return checked_job(sagemaker::read_job_file(words.path), directory_of(words.path), words.aws,
                     words.upload.empty() ? LocalData{} : find_local_data(words.upload));
}

void print_notices(const sagemaker::TrainingJob& job) {
  for (const std::string& notice : job.notices)
    terminal::print(stderr, "shoal submit: {}\n", notice);
}

}  // namespace shoal::app
