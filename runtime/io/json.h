// JSON from untrusted hands: nlohmann-json, with what it lets pass refused.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

// Throws corrupt_data with `name` and the place: syntax, an object that holds a key twice (both
// lost silently otherwise), nesting deeper than `max_depth`.
nlohmann::json parse_json(std::string_view text, std::string_view name, int max_depth = 64);
nlohmann::json read_json_file(const std::string& path);

}  // namespace shoal
