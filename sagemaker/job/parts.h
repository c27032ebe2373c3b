// The parts of a request, one function a group of keys. Not for other rooms.
#pragma once

#include <string>
#include <vector>

#include "shoal/sagemaker/job/distribution.h"
#include "shoal/sagemaker/job/fields.h"
#include "shoal/sagemaker/job/job.h"

namespace shoal::sagemaker {

// What several parts need to know.
struct Draft {
  Fields& job;
  Json& request;
  std::string name, region, account;  // empty where they were wrong
  std::string output_path;
  bool is_default_output = false;
  bool network_isolation = false;
  Machines machines;
  std::vector<std::string>& notices;

  Problems& problems() { return job.problems(); }
};

// ResourceConfig, StoppingCondition, spot, checkpoints, retries; fills `machines`.
void add_machines(Draft& draft);
void add_stopping(Draft& draft);
// InputDataConfig, with the model's channel; the mode of a single input.
void add_inputs(Draft& draft);
// Code: the channel under network isolation, and the hyperparameters that say where it is.
std::optional<SourceCode> add_code(Draft& draft, Json& hyperparameters);
// DebugHookConfig, ProfilerConfig, TensorBoardOutputConfig.
void add_debugger(Draft& draft);

}  // namespace shoal::sagemaker
