// JSON from untrusted hands: nlohmann-json, with what it lets pass refused. All JSON that Shoal
// reads goes through here (tools/check_rules), in time and memory proportional to the text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

// Throws corrupt_data with `name` and the place: syntax, an object that holds a key twice (both
// lost silently otherwise), nesting deeper than `max_depth`, anything but white space after the
// document (nlohmann takes a NUL byte there for the end of the text).
nlohmann::json parse_json(std::string_view text, std::string_view name, int max_depth = 64);
nlohmann::json read_json_file(const std::string& path);
// With the keys of objects in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view name);

// Nothing where these throw: for a text that may be JSON or something else.
std::optional<nlohmann::json> json_if_valid(std::string_view text);
std::optional<nlohmann::ordered_json> ordered_json_if_valid(std::string_view text);

}  // namespace shoal
