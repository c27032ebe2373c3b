#include "shoal/sagemaker/job/distribution.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/ranges.h>

namespace shoal::sagemaker {
namespace {

constexpr std::int64_t kMany = 1 << 20;
constexpr const char* kParameters = "/distribution/smdistributed/modelparallel/parameters";

// PyTorch versions of Amazon's images, from the SDK's fw_utils.
const std::vector<std::string> kDataParallelVersions = {
    "1.6",    "1.6.0",  "1.7",    "1.7.1",  "1.8",    "1.8.0", "1.8.1",  "1.9",
    "1.9.0",  "1.9.1",  "1.10",   "1.10.0", "1.10.2", "1.11",  "1.11.0", "1.12",
    "1.12.0", "1.12.1", "1.13.1", "2.0.0",  "2.0.1",  "2.1.0", "2.1.2",  "2.2.0"};
const std::vector<std::string> kTorchDistributedVersions = {
    "1.13.1", "2.0.0", "2.0.1", "2.1.0", "2.1.2", "2.2.0", "2.3.0",
    "2.3.1",  "2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0"};
const std::vector<std::string> kDataParallelInstances = {"ml.p3.16xlarge", "ml.p3dn.24xlarge",
                                                         "ml.p4d.24xlarge", "ml.p4de.24xlarge"};

bool has(const std::vector<std::string>& all, const std::string& one) {
  return std::ranges::find(all, one) != all.end();
}

struct Mpi {
  bool enabled = false;
  std::int64_t processes = 0;  // per host; 0: one per GPU
};

// Reads {"enabled": true}; other keys are problems.
bool read_switch(Fields& distribution, const std::string& name) {
  auto fields = distribution.object(name);
  if (!fields) return false;
  const bool enabled = fields->flag("enabled", false);
  fields->finish();
  return enabled;
}

Mpi read_mpi(Fields& distribution, Json& out) {
  Mpi mpi;
  auto fields = distribution.object("mpi");
  if (!fields) return mpi;
  mpi.enabled = fields->flag("enabled", false);
  mpi.processes = fields->integer("processes_per_host", 0, 1024).value_or(0);
  out["sagemaker_mpi_enabled"] = mpi.enabled;
  if (mpi.processes > 0) out["sagemaker_mpi_num_of_processes_per_host"] = mpi.processes;
  out["sagemaker_mpi_custom_mpi_options"] = fields->text("custom_mpi_options").value_or("");
  fields->finish();
  return mpi;
}

// --- SMP's parameters

class Parameters {
 public:
  Parameters(const Json& parameters, Problems& problems)
      : fields_(parameters, kParameters, problems) {
    for (const std::string& name : smp_parameter_names()) static_cast<void>(fields_.has(name));
  }

  // Rejects everything that the SDK's validate_mp_config() rejects.
  void check() {
    static_cast<void>(
        fields_.text("pipeline", {.choices = {"simple", "interleaved", "_only_forward", "1f1b",
                                              "virtual_interleaved", "zero_bubble"}}));
    if (const Json* placement = fields_.value("placement_strategy");
        placement != nullptr && placement->is_string()) {
      // SMP also accepts any order of the letters D, P, T.
      auto word = placement->get<std::string>();
      std::ranges::sort(word);
      if (word != "DPT")
        static_cast<void>(fields_.text("placement_strategy", {.choices = {"cluster", "spread"}}));
    }
    static_cast<void>(fields_.text("optimize", {.choices = {"speed", "memory"}}));
    for (const char* name :
         {"microbatches", "partitions", "pipeline_parallel_degree", "tensor_parallel_degree",
          "active_microbatches", "sharded_data_parallel_degree"})
      static_cast<void>(fields_.integer(name, 1, kMany));
    for (const char* name : {"auto_partition", "contiguous", "load_partition", "horovod", "ddp",
                             "deterministic_server"})
      static_cast<void>(fields_.boolean(name));
    static_cast<void>(fields_.text("partition_file"));
    check_partitions();
    for (const char* name : {"ddp_port", "ddp_dist_backend"})
      if (fields_.has(name) && !fields_.has("ddp")) fields_.problem(name, "needs ddp beside it");
    if (fields_.has("ddp_port")) static_cast<void>(fields_.integer("ddp_port", 0, 65535));
    if (is_true("horovod") && is_true("ddp"))
      fields_.problem("horovod", "ddp and horovod cannot both be true");
    if (const Json* weight = fields_.value("memory_weight");
        weight != nullptr &&
        (!weight->is_number() || !(weight->get<double>() >= 0 && weight->get<double>() <= 1)))
      fields_.problem("memory_weight", "is not a number from 0 to 1");
    fields_.finish();
  }

  // `per_host`: ranks per instance; `ranks`: ranks of the job; -1 if unknown. `gpus`: GPUs per
  // instance; 0 if none or unknown.
  void check_degrees(std::int64_t per_host, std::int64_t ranks, std::int64_t gpus) {
    const std::int64_t tensor = degree("tensor_parallel_degree").value_or(1);
    const auto pipeline_name =
        fields_.has("pipeline_parallel_degree") ? "pipeline_parallel_degree" : "partitions";
    const std::int64_t stages = degree(pipeline_name).value_or(1);
    if (per_host > 0 && tensor > per_host)
      fields_.problem("tensor_parallel_degree",
                      fmt::format("is {}, but an instance has {} rank{} (processes_per_host of mpi "
                                  "says how many)",
                                  tensor, per_host, per_host == 1 ? "" : "s"));
    else if (gpus > 0 && tensor > gpus)
      fields_.problem("tensor_parallel_degree", fmt::format("is {}, but an instance has {} GPU{}",
                                                            tensor, gpus, gpus == 1 ? "" : "s"));
    if (ranks <= 0) return;
    if (ranks % (tensor * stages) != 0) {
      fields_.problem(
          pipeline_name,
          fmt::format("{} stages x tensor_parallel_degree {} = {} does not divide the {} "
                      "ranks of the job",
                      stages, tensor, tensor * stages, ranks));
      return;
    }
    if (const auto sharded = degree("sharded_data_parallel_degree");
        sharded && ranks % (*sharded * stages * tensor) != 0)
      fields_.problem("sharded_data_parallel_degree",
                      fmt::format("is {}, which does not divide the {} replicas of the model",
                                  *sharded, ranks / (tensor * stages)));
  }

 private:
  bool is_true(const char* name) {
    const Json* value = fields_.value(name);
    return value != nullptr && value->is_boolean() && value->get<bool>();
  }
  std::optional<std::int64_t> degree(const char* name) {
    const Json* value = fields_.value(name);
    if (value == nullptr || !value->is_number_integer()) return std::nullopt;
    const auto number = value->get<std::int64_t>();
    return number >= 1 && number <= kMany ? std::optional(number) : std::nullopt;
  }
  void check_partitions() {
    if (fields_.has("partitions") && fields_.has("pipeline_parallel_degree") &&
        degree("partitions") != degree("pipeline_parallel_degree"))
      fields_.problem("partitions",
                      "partitions and pipeline_parallel_degree mean the same and differ");
    const Json* automatic = fields_.value("auto_partition");
    const bool is_manual =
        automatic != nullptr && automatic->is_boolean() && !automatic->get<bool>();
    if (is_manual && !fields_.has("default_partition") && !fields_.has("manual_partition"))
      fields_.problem("auto_partition", "is false, so default_partition is needed");
    const auto stages =
        degree("partitions") ? degree("partitions") : degree("pipeline_parallel_degree");
    if (const auto home = fields_.integer("default_partition", 0, kMany);
        home && *home >= stages.value_or(1))
      fields_.problem("default_partition",
                      fmt::format("is {}; it must be below the number of partitions, {}", *home,
                                  stages.value_or(1)));
  }

  Fields fields_;
};

// --- capabilities of images and instances

void check_framework_image(Fields& distribution, const Machines& machines, const std::string& type,
                           bool data_parallel, bool torch_distributed) {
  if (data_parallel && machines.framework == "pytorch" &&
      !has(kDataParallelVersions, machines.framework_version))
    distribution.problems().add(
        "/distribution/smdistributed/dataparallel",
        fmt::format("Amazon's image of PyTorch {} has no data parallel library; "
                    "those of {} do",
                    machines.framework_version, fmt::join(kDataParallelVersions, ", ")));
  if (data_parallel && !type.empty() && !has(kDataParallelInstances, type))
    distribution.problems().add(
        "/distribution/smdistributed/dataparallel",
        fmt::format("Amazon's library does not run on {}; it runs on {} (Shoal's "
                    "image, as image_uri, runs on any)",
                    type, fmt::join(kDataParallelInstances, ", ")));
  if (torch_distributed && machines.framework == "pytorch" &&
      !has(kTorchDistributedVersions, machines.framework_version))
    distribution.problem(
        "torch_distributed",
        fmt::format("Amazon's image of PyTorch {} has no torch_distributed; those "
                    "of {} do",
                    machines.framework_version, fmt::join(kTorchDistributedVersions, ", ")));
}

struct Strategies {
  bool data_parallel = false, model_parallel = false;
  bool torch_distributed = false, pytorch_ddp = false, xla = false;
  Mpi mpi;
};

void check_together(Fields& distribution, const Machines& machines, const std::string& type,
                    const Strategies& s) {
  const auto instance = find_instance_type(type);
  if (instance && instance->accelerator == Accelerator::trainium &&
      (s.data_parallel || s.model_parallel || s.pytorch_ddp || s.xla || s.mpi.enabled))
    distribution.problem("", fmt::format("{} takes torch_distributed only", type));
  if ((s.data_parallel || s.model_parallel) && !s.torch_distributed && machines.image_uri.empty() &&
      type.find("p5.48xlarge") != std::string::npos)
    distribution.problem("smdistributed",
                         fmt::format("Amazon's libraries run on {} only with torch_distributed "
                                     "beside them; Shoal's image (image_uri) needs none",
                                     type));
  if (s.model_parallel && !s.mpi.enabled && !s.torch_distributed)
    distribution.problems().add(
        "/distribution/smdistributed/modelparallel",
        "needs \"mpi\": {\"enabled\": true} beside it, which starts the ranks");
  if (s.pytorch_ddp && s.torch_distributed)
    distribution.problem("pytorchddp", "pytorchddp and torch_distributed exclude each other");
  if (machines.image_uri.empty() && s.torch_distributed && s.model_parallel)
    distribution.problems().add(
        "/distribution/smdistributed/modelparallel",
        "beside torch_distributed it needs an image of its own; give image_uri");
  if (s.xla && !machines.compiler)
    distribution.problem("pytorchxla", "needs compiler_config beside it");
  if (machines.compiler && machines.image_uri.empty() && (s.data_parallel || s.model_parallel))
    distribution.problem("smdistributed", "Amazon's Training Compiler does not go with it");
}

// Instance groups that take part; SageMaker allows one.
std::vector<std::string> groups_of(Fields& distribution, const Machines& machines) {
  auto names = distribution.texts("instance_groups", 1, 5).value_or(std::vector<std::string>{});
  std::vector<std::string> all;
  for (const InstanceGroup& group : machines.groups) all.push_back(group.name);
  for (const std::string& name : names)
    if (!has(all, name))
      distribution.problem("instance_groups",
                           fmt::format("there is no group {}{}", name, did_you_mean(name, all)));
  if (names.empty() && all.size() == 1) return all;
  if (all.size() > 1 && names.size() != 1)
    distribution.problem(
        "instance_groups",
        fmt::format("names {} groups; with several groups, one must take part", names.size()));
  return names;
}

// Reads and checks SMP's parameters; nullopt if disabled or absent.
std::optional<Json> read_model_parallel(Fields& smdistributed, Strategies& s,
                                        std::optional<Parameters>& parameters) {
  auto model = smdistributed.object("modelparallel");
  if (!model) return std::nullopt;
  s.model_parallel = model->flag("enabled", false);
  const Json* given = model->value("parameters");
  model->finish();
  if (given == nullptr || !s.model_parallel) return std::nullopt;
  parameters.emplace(*given, smdistributed.problems());
  parameters->check();
  if (!given->is_object() || given->empty()) return std::nullopt;
  return *given;
}

void read_smdistributed(Fields& distribution, const Json& instance_type, Strategies& s,
                        std::optional<Parameters>& parameters, Json& out) {
  auto both = distribution.object("smdistributed");
  if (!both) return;
  const bool has_data = both->has("dataparallel"), has_model = both->has("modelparallel");
  if (has_data && has_model)
    distribution.problem("smdistributed", "takes one of dataparallel and modelparallel, not both");
  if (const auto given = read_model_parallel(*both, s, parameters)) out["mp_parameters"] = *given;
  std::string options;
  if (auto data = both->object("dataparallel")) {
    s.data_parallel = data->flag("enabled", false);
    options = data->text("custom_mpi_options").value_or("");
    data->finish();
  }
  both->finish();
  out["sagemaker_distributed_dataparallel_enabled"] = s.data_parallel;
  out["sagemaker_instance_type"] = instance_type;
  if (s.data_parallel) out["sagemaker_distributed_dataparallel_custom_mpi_options"] = options;
}

}  // namespace

std::vector<std::string> smp_parameter_names() {
  return {"pipeline_parallel_degree",
          "partitions",
          "tensor_parallel_degree",
          "ddp",
          "placement_strategy",
          "microbatches",
          "pipeline",
          "virtual_pipeline_parallel_degree",
          "active_microbatches",
          "optimize",
          "auto_partition",
          "memory_weight",
          "default_partition",
          "partition_assignment",
          "manual_partition",
          "skip_tracing",
          "partition_file",
          "load_partition",
          "prescaled_batch",
          "shard_optimizer_state",
          "sharded_data_parallel_degree",
          "hybrid_shard_degree",
          "sharding_strategy",
          "sdp_reduce_bucket_size",
          "sdp_param_persistence_threshold",
          "sdp_max_live_parameters",
          "sdp_hierarchical_allgather",
          "sdp_gradient_clipping",
          "activation_checkpointing",
          "offload_activations",
          "sm_activation_offloading",
          "activation_loading_horizon",
          "delayed_parameter_initialization",
          "fp16",
          "bf16",
          "fp16_params",
          "static_loss_scale",
          "dynamic_loss_scale",
          "dynamic_loss_args",
          "random_seed",
          "tensor_parallel_seed",
          "ddp_dist_backend",
          "ddp_port",
          "horovod",
          "herring",
          "deterministic_server",
          "fast_mode",
          "static_mode",
          "task_level_activation_loading_horizon",
          "contiguous",
          "checkpoint_attentions",
          "context_parallel_degree",
          "expert_parallel_degree",
          "fsdp_cache_flush_warnings",
          "allow_empty_shards",
          "translate_if_full",
          "_sharded_data_parallelism_config",
          "_shard_offloaded_activations",
          "_match_weights",
          "_fp32_grad_accumulation"};
}

Json distribution_hyperparameters(Fields& job, const Machines& machines) {
  Json out = Json::object();
  auto distribution = job.object("distribution");
  if (!distribution) return out;
  Strategies s;
  std::optional<Parameters> parameters;
  const std::vector<std::string> groups = groups_of(*distribution, machines);
  std::string type = machines.instance_type;
  std::int64_t count = machines.instance_count;
  for (const InstanceGroup& group : machines.groups)
    if (has(groups, group.name)) {
      type = group.type;
      count = group.count;
    }
  const Json sent_type =
      machines.instance_type.empty() ? Json(nullptr) : Json(machines.instance_type);

  if (!groups.empty()) out["sagemaker_distribution_instance_groups"] = groups;
  s.xla = read_switch(*distribution, "pytorchxla");
  if (distribution->has("pytorchxla")) out["sagemaker_pytorch_xla_multi_worker_enabled"] = s.xla;
  s.mpi = read_mpi(*distribution, out);
  read_smdistributed(*distribution, sent_type, s, parameters, out);
  s.pytorch_ddp = read_switch(*distribution, "pytorchddp");
  s.torch_distributed = read_switch(*distribution, "torch_distributed");
  for (const char* name : {"parameter_server", "multi_worker_mirrored_strategy"})
    distribution->refuse(name, "is of TensorFlow; Shoal has no such strategy");
  distribution->finish();

  check_together(*distribution, machines, type, s);
  if (machines.image_uri.empty() && !machines.framework_version.empty())
    check_framework_image(*distribution, machines, type, s.data_parallel, s.torch_distributed);
  if (parameters) {
    const auto instance = find_instance_type(type);
    std::int64_t per_host = s.mpi.processes;
    if (per_host == 0 && instance)
      per_host = instance->accelerator == Accelerator::none ? 1 : instance->gpus;
    parameters->check_degrees(per_host, per_host > 0 ? per_host * count : -1,
                              instance ? std::max(0, instance->gpus) : 0);
  }
  if (!groups.empty() && !s.mpi.enabled && !s.data_parallel)
    distribution->problem("instance_groups",
                          "are given, but no strategy that starts ranks on them");

  // Each launcher drops the other's keys.
  if (s.pytorch_ddp || s.torch_distributed) {
    if (s.pytorch_ddp || !distribution->has("smdistributed")) out = Json::object();
    out[s.pytorch_ddp ? "sagemaker_pytorch_ddp_enabled" : "sagemaker_torch_distributed_enabled"] =
        true;
    if (!machines.instance_type.empty()) out["sagemaker_instance_type"] = machines.instance_type;
  }
  return out;
}

}  // namespace shoal::sagemaker
