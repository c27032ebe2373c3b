#include "shoal/sagemaker/container/environment.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/sagemaker/job/python_text.h"

namespace shoal::sagemaker {
namespace {

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

// Strings unchanged, null as an empty string, everything else as JSON.
std::string value_text(const Json& value) {
  if (value.is_null()) return {};
  return value.is_string() ? value.get<std::string>() : compact_python_json(value);
}

std::vector<std::string> sorted_names(const Json& object) {
  std::vector<std::string> names;
  for (const auto& [name, unused] : sorted_fields(object)) names.emplace_back(name);
  return names;
}

Json channels_of(const Contract& c) {
  OrderedFields channels;
  for (const auto& [name, unused] : c.inputs.items()) channels[name] = c.path("input/data/" + name);
  return std::move(channels).json();
}

Json groups_by_name(const Contract& c) {
  OrderedFields groups;
  if (const Json* list = find_field(c.resources, "instance_groups"))
    for (const Json& group : *list)
      groups[field_or(group, "instance_group_name", std::string(),
                      c.path("input/config/resourceconfig.json"))] = group;
  return std::move(groups).json();
}

Json optional_text(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// Values that have their own variable and are also part of SM_TRAINING_ENV.
Json shared_values(const Contract& c, const VariableReader& variables) {
  std::string module =
      variables("SAGEMAKER_PROGRAM").value_or(c.program.empty() ? "None" : c.program);
  if (module.ends_with(".py")) module.resize(module.size() - 3);
  const auto setting = [&c](const char* name, const Json& otherwise) {
    const auto found = c.settings.find(name);
    return found == c.settings.end() ? otherwise : *found;
  };
  const auto framework = variables("SAGEMAKER_TRAINING_MODULE");
  return {{"hosts", c.hosts},
          {"network_interface_name", c.interface},
          {"user_entry_point", optional_text(variables("SAGEMAKER_PROGRAM").value_or(c.program))},
          {"resource_config", c.resources},
          {"input_data_config", c.inputs},
          {"output_data_dir", c.path("output/data")},
          {"current_host", c.current_host},
          {"current_instance_type", c.instance_type},
          {"current_instance_group", c.group},
          {"current_instance_group_hosts", c.group_hosts},
          {"instance_groups", c.group_names},
          {"instance_groups_dict", groups_by_name(c)},
          {"distribution_instance_groups", c.distribution_groups},
          {"is_hetero", c.group_names.size() > 1},
          {"module_name", module},
          {"log_level", setting("sagemaker_container_log_level", 20)},
          {"framework_module", framework ? Json(*framework) : Json(nullptr)},
          {"input_dir", c.path("input")},
          {"input_config_dir", c.path("input/config")},
          {"output_dir", c.path("output")},
          {"num_cpus", c.hardware.cpus},
          {"num_gpus", c.hardware.gpus},
          {"num_neurons", 0},
          {"model_dir", c.path("model")},
          {"module_dir", value_text(setting("sagemaker_submit_directory", c.path("code")))},
          {"output_intermediate_dir", c.path("output/intermediate")}};
}

Json training_environment(const Contract& c, Json shared) {
  shared["additional_framework_parameters"] = c.framework_parameters;
  shared["channel_input_dirs"] = channels_of(c);
  shared["distribution_hosts"] = c.distribution_hosts;
  shared["hyperparameters"] = c.hyperparameters;
  shared["is_master"] = c.is_master();
  shared["is_modelparallel_enabled"] = nullptr;
  shared["is_smddpmprun_installed"] = false;
  shared["is_smddprun_installed"] = false;
  shared["job_name"] = optional_text(c.job_name);
  shared["master_hostname"] = c.master_host;
  const auto topology = c.resources.find("topology");
  shared["topology"] = topology == c.resources.end() ? Json::array() : *topology;
  return shared;
}

}  // namespace

std::vector<std::string> user_arguments(const Json& hyperparameters) {
  std::vector<std::string> words;
  for (const auto& [name, value] : sorted_fields(hyperparameters)) {
    words.push_back((name.size() > 1 ? "--" : "-") + std::string(name));
    std::string text;
    if (value->is_object()) {
      for (const auto& [key, inner] : sorted_fields(*value)) {
        if (!text.empty()) text += ',';
        text += key;
        text += '=' + python_str(*inner);
      }
    } else if (!value->is_null()) {
      text = python_str(*value);
    }
    words.push_back(text);
  }
  return words;
}

std::string region_for_s3(const Contract& c, const VariableReader& variables) {
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"})
    if (!variables(name).value_or("").empty()) return {};
  const auto found = c.settings.find("sagemaker_region");
  return found == c.settings.end() ? std::string() : value_text(*found);
}

Variables sm_variables(const Contract& c, const VariableReader& variables) {
  const Json shared = shared_values(c, variables);
  OrderedFields all(shared);
  all["hps"] = c.hyperparameters;
  all["framework_params"] = c.framework_parameters;
  all["channels"] = sorted_names(c.inputs);
  all["training_env"] = training_environment(c, shared);
  all["user_args"] = user_arguments(c.hyperparameters);
  if (const auto topology = c.resources.find("topology");
      topology != c.resources.end() && !topology->empty())
    all["topology"] = *topology;
  const Json channels = channels_of(c);
  for (const auto& [name, path] : channels.items()) all["channel_" + name] = path;
  for (const auto& [name, value] : c.hyperparameters.items()) all["hp_" + name] = value;
  Variables made;
  for (const auto& [name, value] : all.fields())
    made.emplace_back("SM_" + upper(name), value_text(value));
  const auto setting = [&c](const char* name) {
    const auto found = c.settings.find(name);
    return found == c.settings.end() ? std::string() : value_text(*found);
  };
  made.emplace_back("SAGEMAKER_JOB_NAME", setting("sagemaker_job_name"));
  std::string region = setting("sagemaker_region");
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"})
    if (region.empty()) region = variables(name).value_or("");
  made.emplace_back("SAGEMAKER_REGION", region);
  made.emplace_back("CURRENT_HOST", c.current_host);
  return made;
}

bool is_of_one_host(std::string_view name) {
  constexpr std::array<std::string_view, 7> kNames = {"SM_CURRENT_HOST",
                                                      "SM_CURRENT_INSTANCE_TYPE",
                                                      "SM_CURRENT_INSTANCE_GROUP",
                                                      "SM_CURRENT_INSTANCE_GROUP_HOSTS",
                                                      "SM_RESOURCE_CONFIG",
                                                      "SM_TRAINING_ENV",
                                                      "CURRENT_HOST"};
  return std::ranges::find(kNames, name) != kNames.end();
}

}  // namespace shoal::sagemaker
