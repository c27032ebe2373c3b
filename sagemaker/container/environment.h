// The SM_ variables that Amazon's training toolkit 5.1 derives from the contract, which trainers
// and scripts rely on.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shoal/sagemaker/container/contract.h"

namespace shoal::sagemaker {

using Variables = std::vector<std::pair<std::string, std::string>>;

// SM_HOSTS, SM_HPS, SM_HP_<NAME>, SM_CHANNEL_<NAME>, SM_TRAINING_ENV ... in the toolkit's text:
// JSON with sorted keys and no spaces, texts as they are, nothing for null; and SAGEMAKER_JOB_NAME,
// SAGEMAKER_REGION and CURRENT_HOST, which it sets too.
Variables sm_variables(const Contract& contract, const VariableReader& variables);

// The job's region, where the container's environment names none (AWS_REGION,
// AWS_DEFAULT_REGION); else, and where the job names none, empty. What reads S3 wants it as
// AWS_REGION, which SageMaker does not always set.
std::string region_for_s3(const Contract& contract, const VariableReader& variables);

// Those that are of one host: never forwarded to the ranks of another.
bool is_of_one_host(std::string_view name);

// Hyperparameters as the words of a command, sorted by name: --epochs 3, -b 4 (SM_USER_ARGS).
std::vector<std::string> user_arguments(const Json& hyperparameters);

}  // namespace shoal::sagemaker
