// Parts of a request, one function per group of keys. Private to this folder.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/sagemaker/job/distribution.h"
#include "shoal/sagemaker/job/fields.h"
#include "shoal/sagemaker/job/job.h"

namespace shoal::sagemaker {

// Data shared by the parts.
struct Draft {
  Fields& job;
  Json& request;
  std::string name, region, account;  // empty if invalid
  std::string output_path;
  const std::vector<UploadedChannel>& uploads;
  bool is_default_output = false;
  bool network_isolation = false;
  Machines machines;
  std::vector<std::string>& notices;

  Problems& problems() { return job.problems(); }
};

// "s3://bucket/a/b/" -> {"bucket", "a/b"}.
std::pair<std::string, std::string> split_s3(std::string_view uri);
// ResourceConfig, StoppingCondition, spot, checkpoints, retries; fills `machines`.
void add_machines(Draft& draft);
void add_stopping(Draft& draft);
// InputDataConfig, including the model's channel, and the input mode of a single input.
void add_inputs(Draft& draft);
// Code: the channel under network isolation, and the hyperparameters with its location.
std::optional<SourceCode> add_code(Draft& draft, Json& hyperparameters);
// DebugHookConfig, ProfilerConfig, TensorBoardOutputConfig.
void add_debugger(Draft& draft);

}  // namespace shoal::sagemaker
