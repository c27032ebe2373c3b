#include "shoal/sagemaker/container/contract.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <set>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/ordered_fields.h"

namespace shoal::sagemaker {
namespace {

constexpr const char* kDefaultGroup = "homogeneousCluster";

// Hyperparameters that configure the training toolkit, not a framework.
constexpr std::array<std::string_view, 9> kSettings = {"sagemaker_program",
                                                       "sagemaker_submit_directory",
                                                       "sagemaker_enable_cloudwatch_metrics",
                                                       "sagemaker_region",
                                                       "sagemaker_container_log_level",
                                                       "sagemaker_job_name",
                                                       "default_user_module_name",
                                                       "_tuning_objective_metric",
                                                       "sagemaker_s3_output"};

Json read_object(const std::string& path) {
  Json json = parse_ordered_json(read_text_file(path), path);
  if (!json.is_object()) throw_error(ErrorCode::corrupt_data, "{} holds no object", path);
  return json;
}

Json decoded(const Json& value) {
  if (!value.is_string()) return value;
  return ordered_json_if_valid(value.get_ref<const std::string&>()).value_or(value);
}

std::vector<std::string> host_list(const Json& object, const char* key, const std::string& where) {
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array() || list->empty() ||
      !std::ranges::all_of(*list, [](const Json& host) { return host.is_string(); }))
    throw_error(ErrorCode::invalid_argument, "{}: {} is no list of hosts", where, key);
  return list->get<std::vector<std::string>>();
}

bool contains(const std::vector<std::string>& all, const std::string& one) {
  return std::ranges::find(all, one) != all.end();
}

constexpr const char* kHyperparameters = "input/config/hyperparameters.json";

void read_hyperparameters(Contract& c) {
  OrderedFields hyperparameters, framework_parameters, settings;
  const Json given = read_object(c.path(kHyperparameters));
  for (const auto& [name, value] : given.items()) {
    const bool is_setting = std::ranges::find(kSettings, name) != kSettings.end();
    OrderedFields& into = is_setting                       ? settings
                          : name.starts_with("sagemaker_") ? framework_parameters
                                                           : hyperparameters;
    into[name] = decoded(value);
  }
  c.hyperparameters = std::move(hyperparameters).json();
  c.framework_parameters = std::move(framework_parameters).json();
  c.settings = std::move(settings).json();
  c.program = field_or(c.settings, "sagemaker_program", std::string(), c.path(kHyperparameters));
}

bool starts_ranks(const Contract& c) {
  return std::ranges::any_of(
      std::array{"sagemaker_mpi_enabled", "sagemaker_parameter_server_enabled",
                 "sagemaker_distributed_dataparallel_enabled", "sagemaker_pytorch_ddp_enabled",
                 "sagemaker_pytorch_xla_multi_worker_enabled",
                 "sagemaker_multi_worker_mirrored_strategy_enabled",
                 "sagemaker_torch_distributed_enabled"},
      [&c](const char* name) { return c.is_on(name); });
}

void read_groups(Contract& c, const std::string& where) {
  const auto groups = c.resources.find("instance_groups");
  const bool has_groups = groups != c.resources.end() && groups->is_array() && !groups->empty();
  constexpr const char* kAsked = "sagemaker_distribution_instance_groups";
  if (const Json* const asked = find_field(c.framework_parameters, kAsked))
    c.distribution_groups =
        field_as<std::vector<std::string>>(*asked, kAsked, c.path(kHyperparameters));
  else if (starts_ranks(c))
    c.distribution_groups = {c.group};
  if (!has_groups) {
    c.distribution_hosts = c.hosts;
    return;
  }
  const std::set<std::string> distributed(c.distribution_groups.begin(),
                                          c.distribution_groups.end());
  for (const Json& group : *groups) {
    const auto name = field_or(group, "instance_group_name", std::string(), where);
    const auto hosts = host_list(group, "hosts", where + " instance_groups");
    c.group_names.push_back(name);
    if (name == c.group) c.group_hosts = hosts;
    if (distributed.contains(name))
      c.distribution_hosts.insert(c.distribution_hosts.end(), hosts.begin(), hosts.end());
  }
}

}  // namespace

VariableReader process_variables() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

Hardware find_hardware() {
  Hardware found;
  found.cpus = std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  std::FILE* const pipe = ::popen("nvidia-smi --list-gpus 2>&1", "r");
  if (pipe == nullptr) return found;
  std::array<char, 1024> block{};
  while (std::fgets(block.data(), block.size(), pipe) != nullptr) {
    std::string line = block.data();
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())) != 0)
      line.pop_back();
    if (line.starts_with("GPU "))
      ++found.gpus;
    else if (!line.empty() && !line.starts_with("  MIG ") && found.gpu_problem.empty())
      found.gpu_problem = line;
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    found.gpu_problem = "there is no nvidia-smi";
  else if (status != 0)
    found.gpu_problem =
        fmt::format("nvidia-smi ended with status {}{}",
                    WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                    found.gpu_problem.empty() ? "" : ", saying: " + found.gpu_problem);
  return found;
}

bool Contract::is_on(const char* parameter) const {
  const auto found = framework_parameters.find(parameter);
  return found != framework_parameters.end() && found->is_boolean() && found->get<bool>();
}

std::optional<std::string> Contract::framework_text(const char* parameter) const {
  const auto found = framework_parameters.find(parameter);
  if (found == framework_parameters.end() || !found->is_string()) return std::nullopt;
  return found->get<std::string>();
}

Contract read_contract(const std::string& root, const Hardware& hardware,
                       const VariableReader& variables) {
  Contract c;
  c.root = root;
  c.hardware = hardware;
  read_hyperparameters(c);
  const std::string where = c.path("input/config/resourceconfig.json");
  c.resources = read_object(where);
  c.inputs = read_object(c.path("input/config/inputdataconfig.json"));
  c.hosts = host_list(c.resources, "hosts", where);
  const auto text = [&](const char* key, const char* otherwise) {
    return field_or(c.resources, key, std::string(otherwise), where);
  };
  c.current_host = text("current_host", "");
  if (!contains(c.hosts, c.current_host))
    throw_error(ErrorCode::invalid_argument, "{}: current_host '{}' is none of hosts", where,
                shortened(c.current_host));
  c.instance_type = text("current_instance_type", "local");
  c.group = text("current_group_name", kDefaultGroup);
  c.interface = text("network_interface_name", "eth0");
  c.job_name = variables("TRAINING_JOB_NAME").value_or("");
  read_groups(c, where);
  c.master_host = c.distribution_hosts.empty() ? c.hosts.front() : c.distribution_hosts.front();
  return c;
}

}  // namespace shoal::sagemaker
