// Environment variables as a value that is passed: AWS's names are read nowhere else.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace shoal::sagemaker {

// The value of a variable; nothing where it is not set, or empty (as every AWS tool has it).
using Environment = std::function<std::optional<std::string>(std::string_view name)>;

Environment process_environment();
Environment environment_of(std::map<std::string, std::string, std::less<>> variables);
// "true", in any case, and nothing else, as AWS's tools read their switches.
bool is_true(const Environment& environment, std::string_view name);

}  // namespace shoal::sagemaker
