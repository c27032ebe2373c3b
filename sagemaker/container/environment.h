// The SM_ variables that Amazon's training toolkit 5.1 derives from the contract. Trainers and
// scripts rely on them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shoal/sagemaker/container/contract.h"

namespace shoal::sagemaker {

using Variables = std::vector<std::pair<std::string, std::string>>;

// SM_HOSTS, SM_HPS, SM_HP_<NAME>, SM_CHANNEL_<NAME>, SM_TRAINING_ENV ..., and SAGEMAKER_JOB_NAME,
// SAGEMAKER_REGION and CURRENT_HOST. Values are formatted as by the toolkit: JSON with sorted keys
// and no spaces, strings unchanged, null as an empty string.
Variables sm_variables(const Contract& contract, const VariableReader& variables);

// The job's region for S3 readers, which expect it in AWS_REGION. SageMaker does not always set
// that. Empty if AWS_REGION or AWS_DEFAULT_REGION is set, or the job names no region.
std::string region_for_s3(const Contract& contract, const VariableReader& variables);

// True for variables of a single host, which must not be forwarded to ranks on other hosts.
bool is_of_one_host(std::string_view name);

// Hyperparameters as words of a command, sorted by name: --epochs 3, -b 4 (SM_USER_ARGS).
std::vector<std::string> user_arguments(const Json& hyperparameters);

}  // namespace shoal::sagemaker
