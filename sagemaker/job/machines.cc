// ResourceConfig, StoppingCondition, CheckpointConfig, RetryStrategy.
#include <algorithm>

#include <fmt/format.h>

#include "shoal/runtime/base/shortened.h"
#include "shoal/sagemaker/job/parts.h"

namespace shoal::sagemaker {
namespace {

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLongestRun = 28 * 86400;
// Limit of EC2 volumes; the service's model has none.
constexpr std::int64_t kLargestVolume = 16384;
constexpr std::int64_t kMostInstances = 10000;

// True if the job asks for bf16, which `shoal train` refuses on GPUs below compute capability 8.0.
bool asks_for_bf16(Draft& draft) {
  const Json* const options = draft.job.value("hyperparameters");
  if (options == nullptr || !options->is_object()) return false;
  const auto is_on = [options](const char* name) {
    const auto found = options->find(name);
    return found != options->end() &&
           (*found == true || *found == "true" || *found == "True" || *found == "1");
  };
  return is_on("bf16") && !is_on("use_cpu") && !is_on("no_cuda");
}

// True if the type exists, even if the image cannot run on it.
bool check_instance(Draft& draft, const std::string& path, const std::string& name) {
  if (name == "local" || name == "local_gpu") {
    draft.problems().add(path, "local mode is not a job; run `shoal train` instead");
    return false;
  }
  const auto type = find_instance_type(name);
  if (!type) {
    draft.problems().add(path, fmt::format("there is no instance type {}{}", shortened(name),
                                           did_you_mean(name, instance_type_names())));
    return false;
  }
  const auto build = shoal_build(draft.machines.image_uri);
  if (!build) return true;
  const std::string has = fmt::format("{} has {} GPUs (compute capability {}.{})", name, type->gpu,
                                      type->capability / 10, type->capability % 10);
  const int capability = type->accelerator == Accelerator::cuda ? type->capability : 0;
  const int oldest = build == ShoalBuild::cuda13 ? 75 : 50;  // lowest capability of the toolkit
  const int first_compiled = build == ShoalBuild::cuda12 ? 70 : 80;
  if (type->accelerator == Accelerator::trainium)
    draft.problems().add(path,
                         fmt::format("{} has Trainium, for which Shoal has no kernels", name));
  else if (build != ShoalBuild::cpu && capability > 0 && capability < oldest)
    draft.problems().add(
        path, build == ShoalBuild::cuda13 && capability >= 50
                  ? fmt::format("{}, which CUDA 13 dropped; use Shoal's cuda12 image", has)
                  : fmt::format("{}, which no CUDA of Shoal's images knows", has));
  else if (build != ShoalBuild::cpu && capability > 0 && capability < 80 && asks_for_bf16(draft))
    draft.problems().add(
        path, fmt::format("{}, which have no bf16; set fp16 in hyperparameters instead", has));
  else if (build != ShoalBuild::cpu && capability > 0 &&
           (capability < first_compiled || capability > 90))
    draft.notices.push_back(fmt::format(
        "{}; the kernels of Shoal's {} image are compiled for {}.0 to 9.0 (docker/Dockerfile.cuda)",
        has, build == ShoalBuild::cuda12 ? "cuda12" : "cuda13", first_compiled / 10));
  else if (build == ShoalBuild::cpu && type->accelerator == Accelerator::cuda)
    draft.notices.push_back(fmt::format("{} has {} GPUs, and the image {} uses none", name,
                                        type->gpu, draft.machines.image_uri));
  else if (build != ShoalBuild::cpu && type->accelerator == Accelerator::none)
    draft.notices.push_back(fmt::format("{} has no GPU; Shoal's cpu image is smaller", name));
  return true;
}

void add_groups(Draft& draft, const Json& list, Json& resources) {
  if (!list.is_array() || list.empty() || list.size() > 5) {
    draft.job.problem("instance_groups", "1 to 5 groups are allowed, in a list");
    return;
  }
  resources["InstanceGroups"] = Json::array();
  for (std::size_t i = 0; i < list.size(); ++i) {
    Fields fields(list[i], fmt::format("/instance_groups/{}", i), draft.problems());
    InstanceGroup group;
    group.name = fields.text("instance_group_name", {.min = 1, .max = 64}).value_or("");
    group.type = fields.text("instance_type").value_or("");
    group.count = fields.integer("instance_count", 1, kMostInstances).value_or(0);
    for (const char* name : {"instance_group_name", "instance_type", "instance_count"})
      if (!fields.has(name)) fields.problem(name, "is needed");
    fields.finish();
    if (!group.type.empty() && !check_instance(draft, fields.path("instance_type"), group.type))
      group.type.clear();
    for (const InstanceGroup& other : draft.machines.groups)
      if (other.name == group.name)
        fields.problem("instance_group_name",
                       fmt::format("{} stands twice", shortened(group.name)));
    draft.machines.groups.push_back(group);
    resources["InstanceGroups"].push_back({{"InstanceGroupName", group.name},
                                           {"InstanceType", group.type},
                                           {"InstanceCount", group.count}});
  }
}

void add_instances(Draft& draft, Json& resources) {
  Fields& job = draft.job;
  const auto count = job.integer("instance_count", 1, kMostInstances);
  const auto type = job.text("instance_type");
  if (const Json* groups = job.value("instance_groups")) {
    for (const char* name : {"instance_count", "instance_type"})
      if (job.has(name)) job.problem(name, "cannot be given beside instance_groups");
    add_groups(draft, *groups, resources);
    return;
  }
  for (const char* name : {"instance_count", "instance_type"})
    if (!job.has(name)) job.problem(name, "is needed (or instance_groups)");
  if (type && check_instance(draft, "/instance_type", *type)) draft.machines.instance_type = *type;
  draft.machines.instance_count = count.value_or(0);
  resources["InstanceCount"] = count.value_or(0);
  resources["InstanceType"] = type.value_or("");
}

// Uses the API's own names, as in the SDK.
Json read_placement(Fields& placement) {
  Json out = Json::object();
  if (const auto several = placement.boolean("EnableMultipleJobs"))
    out["EnableMultipleJobs"] = *several;
  if (const Json* list = placement.value("PlacementSpecifications")) {
    if (!list->is_array() || list->size() > 10) {
      placement.problem("PlacementSpecifications", "is not a list of at most 10 places");
      return out;
    }
    out["PlacementSpecifications"] = Json::array();
    for (std::size_t i = 0; i < list->size(); ++i) {
      Fields place((*list)[i], fmt::format("{}/{}", placement.path("PlacementSpecifications"), i),
                   placement.problems());
      Json one = Json::object();
      if (const auto id = place.text("UltraServerId", {.max = 256})) one["UltraServerId"] = *id;
      if (const auto count = place.integer("InstanceCount", 1, kMostInstances))
        one["InstanceCount"] = *count;
      if (!place.has("InstanceCount")) place.problem("InstanceCount", "is needed");
      place.finish();
      out["PlacementSpecifications"].push_back(one);
    }
  }
  placement.finish();
  return out;
}

}  // namespace

void add_machines(Draft& draft) {
  Fields& job = draft.job;
  Json resources = {{"VolumeSizeInGB", job.integer("volume_size", 1, kLargestVolume).value_or(30)}};
  if (const auto key = job.text("volume_kms_key", kms_key_rules()))
    resources["VolumeKmsKeyId"] = *key;
  if (const auto seconds = job.integer("keep_alive_period_in_seconds", 0, 21600))
    resources["KeepAlivePeriodInSeconds"] = *seconds;
  add_instances(draft, resources);
  if (const auto plan =
          job.text("training_plan",
                   {.min = 50,
                    .max = 2048,
                    .pattern = "arn:aws[a-z\\-]*:sagemaker:[a-z0-9\\-]*:[0-9]{12}:training-plan/.*",
                    .looks = "arn:aws:sagemaker:REGION:ACCOUNT:training-plan/NAME"}))
    resources["TrainingPlanArn"] = *plan;
  if (auto placement = job.object("instance_placement_config"))
    resources["InstancePlacementConfig"] = read_placement(*placement);
  draft.request["ResourceConfig"] = resources;
}

void add_stopping(Draft& draft) {
  Fields& job = draft.job;
  const std::int64_t run = job.integer("max_run", 1, kLongestRun).value_or(86400);
  const auto wait = job.integer("max_wait", 1, kAny);
  const bool spot = job.flag("use_spot_instances", false);
  draft.request["StoppingCondition"] = {{"MaxRuntimeInSeconds", run}};
  if (wait) draft.request["StoppingCondition"]["MaxWaitTimeInSeconds"] = *wait;
  if (spot && !job.has("max_wait"))
    job.problem("max_wait", fmt::format("is needed with use_spot_instances: how long to wait for "
                                        "spot capacity and to train, at least max_run, {}",
                                        run));
  if (!spot && wait)
    job.problem("max_wait", "is for spot instances; set use_spot_instances, or leave it out");
  if (wait && *wait < run)
    job.problem("max_wait", fmt::format("is {}; it must be at least max_run, {}", *wait, run));
  if (spot && job.integer("keep_alive_period_in_seconds", 0, 21600).value_or(0) > 0)
    job.problem("keep_alive_period_in_seconds", "spot instances cannot be kept alive");
  if (spot) draft.request["EnableManagedSpotTraining"] = true;

  const auto uri = job.text("checkpoint_s3_uri", s3_rules());
  const auto local = job.text("checkpoint_local_path", {.min = 1, .max = 4096});
  if (uri) {
    draft.request["CheckpointConfig"] = {{"S3Uri", *uri}};
    if (local) draft.request["CheckpointConfig"]["LocalPath"] = *local;
  }
  if (local && !job.has("checkpoint_s3_uri"))
    job.problem("checkpoint_local_path", "has no effect without checkpoint_s3_uri");
  if (local && !local->starts_with('/'))
    job.problem("checkpoint_local_path", "is not an absolute path");
  // SageMaker does not tell the container this path.
  const Json* options = job.value("hyperparameters");
  const bool says_output =
      options != nullptr && options->is_object() && options->contains("output_dir");
  if (local && !says_output && *local != "/opt/ml/checkpoints" && *local != "/opt/ml/checkpoints/")
    draft.notices.push_back(
        fmt::format("checkpoint_local_path is {0}: what trains must be told so (Shoal: output_dir "
                    "{0}), else checkpoints are not kept",
                    *local));
  if (spot && !uri)
    draft.notices.emplace_back(
        "use_spot_instances without checkpoint_s3_uri: an interrupted job begins anew");
  if (const auto attempts = job.integer("max_retry_attempts", 1, 30))
    draft.request["RetryStrategy"] = {{"MaximumRetryAttempts", *attempts}};
}

}  // namespace shoal::sagemaker
