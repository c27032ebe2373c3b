// Everything SageMaker provides to a container: files under /opt/ml and a few variables.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace shoal::sagemaker {

using Json = nlohmann::ordered_json;

// Reads a variable; nullopt if unset. Tests pass a fake.
using VariableReader = std::function<std::optional<std::string>(std::string_view name)>;
VariableReader process_variables();

struct Hardware {
  int gpus = 0;
  int cpus = 1;
  std::string gpu_problem = {};  // unexpected output of nvidia-smi, or a note that it is missing
};
Hardware find_hardware();  // counts the GPUs that nvidia-smi lists

struct Contract {
  std::string root;           // "/opt/ml"
  Json hyperparameters;       // the user's; values that are JSON text are decoded
  Json framework_parameters;  // sagemaker_* except the toolkit's own settings
  Json settings;              // sagemaker_program, sagemaker_submit_directory ...
  Json resources, inputs;     // resourceconfig.json, inputdataconfig.json

  std::vector<std::string> hosts;  // all hosts; without instance groups, rank 0 runs on the first
  std::string current_host, instance_type, group;
  std::vector<std::string> group_names;          // from resourceconfig.json
  std::vector<std::string> group_hosts;          // hosts of the current group
  std::vector<std::string> distribution_groups;  // groups that take part in distributed training
  std::vector<std::string> distribution_hosts;
  std::string master_host, interface, job_name;  // job_name: empty outside a job
  std::string program;                           // sagemaker_program; empty: none
  Hardware hardware;

  std::string path(std::string_view below) const { return root + "/" + std::string(below); }
  bool is_master() const { return current_host == master_host; }
  bool is_on(const char* parameter) const;  // true if framework_parameters has it as `true`
  std::optional<std::string> framework_text(const char* parameter) const;
};

// Reads the three files. Throws not_found or corrupt_data, naming the file, if one is missing or
// malformed, and invalid_argument if the hosts are inconsistent. Decodes strings of
// hyperparameters.json once, like training toolkit 5.1.
Contract read_contract(const std::string& root, const Hardware& hardware,
                       const VariableReader& variables);

}  // namespace shoal::sagemaker
