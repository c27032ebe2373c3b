// What SageMaker puts before a container: files under /opt/ml, and a few variables.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace shoal::sagemaker {

using Json = nlohmann::ordered_json;

// A variable's value, or nothing. Tests pass a fake.
using VariableReader = std::function<std::optional<std::string>(std::string_view name)>;
VariableReader process_variables();

struct Hardware {
  int gpus = 0;
  int cpus = 1;
  std::string gpu_problem = {};  // what nvidia-smi said besides GPUs, or that there is none
};
Hardware find_hardware();  // GPUs as nvidia-smi lists them

struct Contract {
  std::string root;           // "/opt/ml"
  Json hyperparameters;       // the user's, decoded: a text that is JSON is what it says
  Json framework_parameters;  // sagemaker_* that are no part of the toolkit's own settings
  Json settings;              // sagemaker_program, sagemaker_submit_directory ...
  Json resources, inputs;     // resourceconfig.json, inputdataconfig.json

  std::vector<std::string> hosts;  // all; the first is where rank 0 is, unless groups say otherwise
  std::string current_host, instance_type, group;
  std::vector<std::string> group_names;          // of resourceconfig.json
  std::vector<std::string> group_hosts;          // of the current group
  std::vector<std::string> distribution_groups;  // that take part in distributed training
  std::vector<std::string> distribution_hosts;
  std::string master_host, interface, job_name;  // job_name: empty outside a job
  std::string program;                           // sagemaker_program; empty: none
  Hardware hardware;

  std::string path(std::string_view below) const { return root + "/" + std::string(below); }
  bool is_master() const { return current_host == master_host; }
  bool is_on(const char* parameter) const;  // of framework_parameters, true
  std::optional<std::string> framework_text(const char* parameter) const;
};

// Reads the three files. One that is missing or malformed: not_found or corrupt_data, naming it;
// hosts that do not hold together: invalid_argument. Strings of hyperparameters.json are decoded
// once, as the training toolkit 5.1 does.
Contract read_contract(const std::string& root, const Hardware& hardware,
                       const VariableReader& variables);

}  // namespace shoal::sagemaker
