// JSON as Python writes it, which is what Amazon's SDK and toolkit put on the wire.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace shoal::sagemaker {

// json.dumps(value): ", " and ": ", everything beyond ASCII escaped, floats as repr() has them,
// keys in their order.
std::string python_json(const nlohmann::ordered_json& value);
// json.dumps(value, sort_keys=True, separators=(",", ":")), as the toolkit's SM_ variables.
std::string compact_python_json(const nlohmann::ordered_json& value);
// str(value): True, None, [1, 'a'], {'k': 0.5}; a string as it is.
std::string python_str(const nlohmann::ordered_json& value);

}  // namespace shoal::sagemaker
