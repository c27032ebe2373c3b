// A directory laid out like SageMaker's /opt/ml.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "support/temporary_directory.h"
#include <nlohmann/json.hpp>

namespace shoal::sagemaker {

class OptMl {
 public:
  using Json = nlohmann::ordered_json;

  // `at`: its path, inside a directory that the caller removes; empty: a directory of its own. The
  // interface is "lo", so that mpirun finds it on this machine.
  explicit OptMl(const std::vector<std::string>& hosts = {"algo-1"},
                 const std::string& current = "algo-1",
                 const std::string& instance_type = "ml.m5.xlarge", const std::string& at = "",
                 const std::string& interface = "lo")
      : own_(at.empty() ? std::make_unique<testing::TemporaryDirectory>() : nullptr),
        root_(own_ ? own_->path() : at) {
    for (const char* folder : {"input/config", "input/data", "output", "model"})
      std::filesystem::create_directories(path(folder));
    const Json group = {{"instance_group_name", "homogeneousCluster"},
                        {"instance_type", instance_type},
                        {"hosts", hosts}};
    resources({{"current_host", current},
               {"current_instance_type", instance_type},
               {"current_group_name", "homogeneousCluster"},
               {"hosts", hosts},
               {"network_interface_name", interface},
               {"instance_groups", Json::array({group})}});
    hyperparameters(Json::object());
    inputs(Json::object());
  }
  void resources(const Json& json) { config("resourceconfig", json); }
  void hyperparameters(const Json& json) { config("hyperparameters", json); }
  void inputs(const Json& json) { config("inputdataconfig", json); }
  // A channel in File mode with these files.
  void channels(const std::vector<std::pair<std::string, std::vector<std::string>>>& all) {
    Json json = Json::object();
    for (const auto& [name, files] : all) {
      json[name] = {{"TrainingInputMode", "File"}};
      for (const std::string& file : files) write("input/data/" + name + "/" + file, "text\n");
    }
    inputs(json);
  }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name)) << text;
  }
  std::string path(const std::string& name) const { return root_ + "/" + name; }
  const std::string& root() const { return root_; }

 private:
  void config(const std::string& name, const Json& json) {
    std::ofstream(path("input/config/" + name + ".json")) << json.dump(1);
  }
  std::unique_ptr<testing::TemporaryDirectory> own_;
  std::string root_;
};

}  // namespace shoal::sagemaker
