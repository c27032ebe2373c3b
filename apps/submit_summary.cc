#include "submit_summary.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shoal/parallel/predict/machine.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/memory/mebibytes.h"
#include "shoal/sagemaker/job/images.h"
#include "shoal/sagemaker/job/instances.h"
#include "shoal/sagemaker/job/secrets.h"

namespace shoal::app {
namespace {

using sagemaker::Json;

constexpr const char* kRequest = "the request";

std::string text_at(const Json& object, const char* key) {
  return field_or(object, key, std::string(), kRequest);
}
std::int64_t count_at(const Json& object, const char* key) {
  return field_or<std::int64_t>(object, key, 0, kRequest);
}
// An object or list of the request; empty if the request lacks it.
Json part(const Json& request, const char* key) {
  return field_or(request, key, Json::object(), kRequest);
}
std::string plain(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}
// The value of a hyperparameter, which the request has as JSON text; null if it is not given.
Json parameter(const Json& request, const char* name) {
  const std::string text = text_at(part(request, "HyperParameters"), name);
  return ordered_json_if_valid(text).value_or(Json(text.empty() ? Json() : Json(text)));
}

struct Instances {
  std::string type;
  std::int64_t count = 0;
};

std::vector<Instances> groups_in(const Json& request) {
  const Json resources = part(request, "ResourceConfig");
  std::vector<Instances> all;
  const auto add = [&all](const Json& group) {
    all.push_back({text_at(group, "InstanceType"), count_at(group, "InstanceCount")});
  };
  if (const Json* const groups = find_field(resources, "InstanceGroups"))
    for (const Json& group : *groups) add(group);
  else
    add(resources);
  return all;
}

std::string instances_text(const Json& request) {
  std::vector<std::string> groups;
  for (const auto& [name, count] : groups_in(request)) {
    const auto type = sagemaker::find_instance_type(name);
    std::string has;
    if (type && type->accelerator == sagemaker::Accelerator::cuda && type->gpus > 0)
      has = fmt::format(" ({} {}{})", type->gpus, type->gpu, count > 1 ? " each" : "");
    groups.push_back(fmt::format("{} x {}{}", count, name, has));
  }
  return fmt::format("{}, {} GB of disk each", fmt::join(groups, " + "),
                     count_at(part(request, "ResourceConfig"), "VolumeSizeInGB"));
}

// "model-parallel: partitions 4, microbatches 4", or the name of the strategy; empty: none.
std::string strategy_text(const Json& request) {
  if (const Json smp = parameter(request, "mp_parameters"); smp.is_object()) {
    std::vector<std::string> words;
    for (const auto& [name, value] : smp.items())
      words.push_back(fmt::format("{} {}", name, plain(value)));
    return "model-parallel: " + shortened(fmt::format("{}", fmt::join(words, ", ")), 300);
  }
  for (const auto& [name, strategy] :
       {std::pair{"sagemaker_distributed_dataparallel_enabled", "data-parallel (smdistributed)"},
        {"sagemaker_torch_distributed_enabled", "torch_distributed"},
        {"sagemaker_pytorch_ddp_enabled", "pytorchddp"},
        {"sagemaker_pytorch_xla_multi_worker_enabled", "pytorchxla"},
        {"sagemaker_mpi_enabled", "mpi"}})
    if (parameter(request, name) == true) return strategy;
  return {};
}

std::string ranks_text(const Json& request, const std::string& image) {
  const std::vector<Instances> groups = groups_in(request);
  const std::string strategy = strategy_text(request);
  if (groups.size() > 1) return strategy.empty() ? "one on each instance" : strategy;
  if (strategy.empty())
    return fmt::format("{}{} (no distribution)", groups[0].count,
                       groups[0].count > 1 ? ", one on each instance" : "");
  const auto type = sagemaker::find_instance_type(groups[0].type);
  std::int64_t each =
      type ? std::max(type->accelerator == sagemaker::Accelerator::none ? 1 : 0, type->gpus) : 0;
  if (sagemaker::shoal_build(image) == sagemaker::ShoalBuild::cpu) each = 1;
  const Json asked = parameter(request, "sagemaker_mpi_num_of_processes_per_host");
  if (asked.is_number_integer()) each = asked.get<std::int64_t>();
  if (each <= 0) return strategy;
  return fmt::format("{}, {}", each * groups[0].count, strategy);
}

std::string code_text(const sagemaker::TrainingJob& job) {
  if (!job.code) return " from " + plain(parameter(job.request, "sagemaker_submit_directory"));
  const sagemaker::SourceCode& code = *job.code;
  if (code.git) return " from " + code.git->repository;
  return code.source_dir.empty() ? "" : " from " + code.source_dir;
}

// The program that the ranks run.
std::string program_text(const CheckedJob& checked, const std::string& image) {
  const sagemaker::TrainingJob& job = checked.job;
  const Json algorithm = part(job.request, "AlgorithmSpecification");
  if (const Json* const words = find_field(algorithm, "ContainerEntrypoint"))
    return fmt::format(
        "{} (container_entry_point)",
        shortened(fmt::format("{}", fmt::join(words->get<std::vector<std::string>>(), " "))));
  const Json program = parameter(job.request, "sagemaker_program");
  const bool is_shoals = sagemaker::shoal_build(image).has_value();
  std::string task = checked.task.empty() ? "" : ": " + checked.task;
  if (is_shoals && parameter(job.request, "sagemaker_training_compiler_enabled") == true)
    task += ", steps are recorded and replayed (compiler_config)";
  if (!program.is_string()) return (is_shoals ? "shoal train" : "the image's `train`") + task;
  const auto name = program.get<std::string>();
  return (is_shoals && name.ends_with(".json") ? "shoal train " : "") + name + code_text(job) +
         task;
}

std::string options_text(const Json& request) {
  std::vector<std::string> words;
  const Json options = part(request, "HyperParameters");
  for (const auto& [name, text] : options.items())
    if (!name.starts_with("sagemaker_") && name != "mp_parameters")
      words.push_back(fmt::format("{} {}", name, plain(parameter(request, name.c_str()))));
  return words.empty() ? "none" : shortened(fmt::format("{}", fmt::join(words, ", ")), 400);
}

// " (2 files, 1.5 MiB from data/train)" for a channel that will be uploaded.
std::string upload_text(const LocalData& data, const std::string& channel) {
  for (const LocalChannel& local : data.channels)
    if (local.name == channel)
      return fmt::format(" ({} file{}, {} from {})", local.files.size(),
                         local.files.size() == 1 ? "" : "s", mebibytes(local.bytes()), local.path);
  return {};
}

std::vector<std::string> data_texts(const Json& request, const LocalData& data) {
  std::vector<std::string> lines;
  for (const Json& channel : part(request, "InputDataConfig")) {
    const Json source = part(channel, "DataSource");
    const Json s3 = part(source, "S3DataSource"), files = part(source, "FileSystemDataSource");
    const std::string name = text_at(channel, "ChannelName");
    lines.push_back(fmt::format(
        "{}: {}{}", name,
        s3.empty() ? text_at(files, "FileSystemId") + " " + text_at(files, "DirectoryPath")
                   : text_at(s3, "S3Uri"),
        upload_text(data, name)));
  }
  if (lines.empty()) lines.emplace_back("no channels");
  return lines;
}

std::string output_text(const sagemaker::TrainingJob& job) {
  const Json output = part(job.request, "OutputDataConfig");
  std::string path = text_at(output, "S3OutputPath");
  while (path.ends_with('/')) path.pop_back();
  return fmt::format("{}/{}/output/model{}", path, job.name,
                     text_at(output, "CompressionType") == "NONE" ? "/" : ".tar.gz");
}

std::string hours_text(std::int64_t seconds) {
  if (seconds < 3600) return fmt::format("{:.3g} min", static_cast<double>(seconds) / 60);
  return fmt::format("{:.4g} h", static_cast<double>(seconds) / 3600);
}

bool is_spot(const Json& request) {
  return field_or(request, "EnableManagedSpotTraining", false, kRequest);
}

std::string time_text(const Json& request) {
  const Json limits = part(request, "StoppingCondition");
  std::string text = "at most " + hours_text(count_at(limits, "MaxRuntimeInSeconds"));
  if (is_spot(request))
    text += fmt::format(" on spot instances, done or given up after {}",
                        hours_text(count_at(limits, "MaxWaitTimeInSeconds")));
  const std::string checkpoints = text_at(part(request, "CheckpointConfig"), "S3Uri");
  return text + (checkpoints.empty() ? "; no checkpoints" : "; checkpoints in " + checkpoints);
}

std::string price_text(const Json& request) {
  const std::vector<std::string> known = parallel::machine_names();
  double hourly = 0;
  std::vector<std::string> terms;
  std::string date;
  for (const auto& [type, count] : groups_in(request)) {
    const std::string name = type.starts_with("ml.") ? type.substr(3) : type;
    parallel::Price price;
    if (std::ranges::find(known, name) != known.end()) price = parallel::find_machine(name).price;
    if (price.dollars_per_hour <= 0)
      return fmt::format("not known: the planner has no price of {}", type);
    hourly += price.dollars_per_hour * static_cast<double>(count);
    terms.push_back(fmt::format("{} x {}", count, price.dollars_per_hour));
    date = fmt::format("{}, {}", price.region, price.date);
  }
  const std::int64_t seconds = count_at(part(request, "StoppingCondition"), "MaxRuntimeInSeconds");
  return fmt::format("at most {:.2f} dollars, {} an hour: the planner's example ({}){}",
                     hourly * static_cast<double>(seconds) / 3600, fmt::join(terms, " + "), date,
                     is_spot(request) ? "; spot costs less" : "");
}

}  // namespace

std::string summary_of(const CheckedJob& checked) {
  const sagemaker::TrainingJob& job = checked.job;
  const Json request = sagemaker::without_secrets(job.request);
  const std::string image = text_at(part(request, "AlgorithmSpecification"), "TrainingImage");
  std::string text;
  const auto add = [&text](const char* name, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      text += fmt::format("{:<11}{}\n", name, line);
      name = "";
    }
  };
  add("job", {fmt::format("{} in {}", job.name, job.region)});
  add("image", {image});
  add("instances", {instances_text(request)});
  add("ranks", {ranks_text(request, image)});
  add("runs", {program_text(checked, image)});
  add("options", {options_text(request)});
  add("data", data_texts(request, checked.data));
  add("output", {output_text(job)});
  add("time", {time_text(request)});
  add("price", {price_text(request)});
  add("warnings", job.notices.empty() ? std::vector<std::string>{"none"} : job.notices);
  return text;
}

}  // namespace shoal::app
