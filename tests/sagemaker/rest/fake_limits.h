// What the service's model says of a request CreateTrainingJob (botocore's shapes of SageMaker).
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace shoal::test {

// The first thing that the service would refuse, by its path; nothing: it keeps to the limits.
std::string beyond_limits(const nlohmann::json& request);

}  // namespace shoal::test
