// `distribution`: the launcher and the parallelism, in the terms of Amazon's estimators.
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

// The machines that `distribution` is checked against.
struct Machines {
  std::string instance_type;  // empty: groups are used, or the type was invalid
  std::int64_t instance_count = 0;
  std::vector<InstanceGroup> groups;
  std::string image_uri;  // empty: one of Amazon's images, by versions
  std::string framework = "pytorch", framework_version;  // of Amazon's image
  bool compiler = false, compiler_debug = false;
};

// The hyperparameters that the SDK derives from `distribution`, not yet encoded:
// sagemaker_mpi_enabled and so on. Reports what the SDK refuses, and what it accepts although it
// cannot work: degrees that do not divide the GPUs, strategies that the image lacks on the
// instances.
//
// One difference: smdistributed's keys are also sent together with torch_distributed, as the SDK's
// PyTorch estimator does. The SDK's Hugging Face estimator drops them.
Json distribution_hyperparameters(Fields& job, const Machines& machines);

// Names of SMP's `parameters`, for suggestions on misspelt ones.
std::vector<std::string> smp_parameter_names();

}  // namespace shoal::sagemaker
