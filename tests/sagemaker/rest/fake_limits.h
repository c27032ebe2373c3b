// The limits of the service's model for CreateTrainingJob (botocore's shapes of SageMaker).
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace shoal::test {

// The first problem that the service would refuse, with its path; empty: the request is valid.
std::string beyond_limits(const nlohmann::json& request);

}  // namespace shoal::test
