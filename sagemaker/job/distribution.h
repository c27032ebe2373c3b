// `distribution`: which launcher and which parallelism, as Amazon's estimators take it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/sagemaker/job/fields.h"
#include "shoal/sagemaker/job/images.h"
#include "shoal/sagemaker/job/instances.h"

namespace shoal::sagemaker {

struct InstanceGroup {
  std::string name;
  std::string type;
  std::int64_t count = 0;
};

// What `distribution` is checked against.
struct Machines {
  std::string instance_type;  // empty: there are groups, or it was wrong
  std::int64_t instance_count = 0;
  std::vector<InstanceGroup> groups;
  std::string image_uri;  // empty: one of Amazon's images, by versions
  std::string framework = "pytorch", framework_version;  // of Amazon's image
  bool compiler = false, compiler_debug = false;
};

// The hyperparameters that the SDK makes of `distribution`, not yet encoded: sagemaker_mpi_enabled
// and so on. What the SDK refuses is a problem here too, and what it lets pass and cannot work:
// degrees that do not divide the GPUs, strategies that the image has not for the instances.
// One difference: beside torch_distributed, smdistributed's keys are sent (the SDK's PyTorch
// estimator does so; its Hugging Face estimator drops them).
Json distribution_hyperparameters(Fields& job, const Machines& machines);

// Names of what is in SMP's `parameters`, for the nearest of a misspelt one.
std::vector<std::string> smp_parameter_names();

}  // namespace shoal::sagemaker
