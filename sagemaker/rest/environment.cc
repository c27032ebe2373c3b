#include "shoal/sagemaker/rest/environment.h"

#include <cstdlib>
#include <utility>

#include "shoal/sagemaker/rest/encode.h"

namespace shoal::sagemaker {

Environment process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
}

Environment environment_of(std::map<std::string, std::string, std::less<>> variables) {
  return [values = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end() || found->second.empty()) return std::nullopt;
    return found->second;
  };
}

bool is_true(const Environment& environment, std::string_view name) {
  const auto value = environment(name);
  return value && lower(*value) == "true";
}

}  // namespace shoal::sagemaker
