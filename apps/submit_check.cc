#include "submit_check.h"

#include <filesystem>

#include "commands.h"

#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/container/command.h"
#include "shoal/sagemaker/job/images.h"

namespace shoal::app {
namespace {

using sagemaker::Json;

// As SageMaker hands them to the container, and the container to `shoal train`.
Json run_options(const Json& request) {
  Json options = Json::object();
  if (!request.contains("HyperParameters")) return options;
  for (const auto& [name, text] : request["HyperParameters"].items())
    if (!name.starts_with("sagemaker_")) options[name] = Json::parse(text.get<std::string>());
  return options;
}

std::string with_paths(std::string text) {
  const std::string source = "command line --";
  for (auto at = text.find(source); at != std::string::npos; at = text.find(source, at))
    text.replace(at, source.size(), "/hyperparameters/");
  return text;
}

}  // namespace

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
  try {
    check_train_words(words);
  } catch (const Error& error) {
    throw Error(error.code(), with_paths(error.message()), error.remedy());
  }
}

}  // namespace shoal::app
