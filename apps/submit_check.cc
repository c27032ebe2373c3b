#include "submit_check.h"

#include <filesystem>

#include "commands.h"
#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/sagemaker/container/command.h"
#include "shoal/sagemaker/job/images.h"
#include "shoal/sagemaker/job/instances.h"
#include "shoal/sagemaker/job/source.h"

namespace shoal::app {
namespace {

using sagemaker::Json;

// As SageMaker hands them to the container, and the container to `shoal train`.
Json run_options(const Json& request) {
  Json options = Json::object();
  if (!request.contains("HyperParameters")) return options;
  for (const auto& [name, text] : request["HyperParameters"].items())
    if (!name.starts_with("sagemaker_"))
      options[name] = parse_ordered_json(text.get<std::string>(), "hyperparameter " + name);
  return options;
}

std::string with_paths(std::string text) {
  const std::string source = "command line --";
  for (auto at = text.find(source); at != std::string::npos; at = text.find(source, at))
    text.replace(at, source.size(), "/hyperparameters/");
  return text;
}

// What the options ask for and an instance has not.
void check_instance(const Json& resources, const std::string& path, const TrainNeeds& needs) {
  const auto type = sagemaker::find_instance_type(resources.value("InstanceType", ""));
  if (!needs.bf16 || !needs.gpu || !type || type->accelerator != sagemaker::Accelerator::cuda ||
      type->capability == 0 || type->capability >= 80)
    return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{}/instance_type: {} has {} GPUs (compute capability {}.{}), which have "
                  "no bf16, and the run's options set it",
                  path, type->name, type->gpu, type->capability / 10, type->capability % 10),
      "set fp16 instead, in the entry point's file, hyperparameters or mp_parameters");
}

void check_run(const sagemaker::TrainingJob& job, const std::string& directory) {
  const Json& algorithm = job.request.at("AlgorithmSpecification");
  const auto image = algorithm.value("TrainingImage", "");
  if (!sagemaker::shoal_build(image) || image.find(":" SHOAL_VERSION "-") == std::string::npos ||
      algorithm.contains("ContainerEntrypoint"))
    return;
  const Json options = run_options(job.request);
  std::vector<std::string> words;
  if (job.code && !job.code->git && job.code->entry_point.ends_with(".json"))
    words.push_back(
        (std::filesystem::path(directory) / job.code->source_dir / job.code->entry_point).string());
  const std::vector<std::string> given = sagemaker::option_words(options);
  words.insert(words.end(), given.begin(), given.end());
  TrainNeeds needs;
  try {
    needs = check_train_words(words);
  } catch (const Error& error) {
    throw Error(error.code(), with_paths(error.message()), error.remedy());
  }
  if (sagemaker::shoal_build(image) == sagemaker::ShoalBuild::cpu) return;
  const Json& resources = job.request.at("ResourceConfig");
  check_instance(resources, "", needs);
  const Json groups = resources.value("InstanceGroups", Json::array());
  for (std::size_t i = 0; i < groups.size(); ++i)
    check_instance(groups[i], fmt::format("/instance_groups/{}", i), needs);
}

}  // namespace

std::string directory_of(const std::string& path) {
  return std::filesystem::absolute(path).parent_path().string();
}

sagemaker::TrainingJob checked_job(const SubmitWords& words) {
  sagemaker::TrainingJob job = sagemaker::make_training_job(
      sagemaker::read_job_file(words.path), {.region = region_of(words.aws),
                                             .is_region_asked = words.aws.region.has_value(),
                                             .now = std::chrono::system_clock::now()});
  const std::string directory = directory_of(words.path);
  if (job.code) sagemaker::check_source(*job.code, directory);
  check_run(job, directory);
  for (const std::string& notice : job.notices) fmt::print(stderr, "shoal submit: {}\n", notice);
  return job;
}

}  // namespace shoal::app
