// JSON as Python formats it, as sent by Amazon's SDK and toolkit.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace shoal::sagemaker {

// json.dumps(value): ", " and ": ", non-ASCII escaped, floats as in repr(), keys in their order.
std::string python_json(const nlohmann::ordered_json& value);
// json.dumps(value, sort_keys=True, separators=(",", ":")), as in the toolkit's SM_ variables.
std::string compact_python_json(const nlohmann::ordered_json& value);
// str(value): True, None, [1, 'a'], {'k': 0.5}; a string unchanged.
std::string python_str(const nlohmann::ordered_json& value);

}  // namespace shoal::sagemaker
