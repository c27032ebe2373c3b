// Environment variables as a value that callers pass. AWS's variables are read nowhere else.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace shoal::sagemaker {

// The value of a variable; nullopt if unset or empty, as in AWS's tools.
using Environment = std::function<std::optional<std::string>(std::string_view name)>;

Environment process_environment();
Environment environment_of(std::map<std::string, std::string, std::less<>> variables);
// True only for "true" in any case, as in AWS's tools.
bool is_true(const Environment& environment, std::string_view name);

}  // namespace shoal::sagemaker
