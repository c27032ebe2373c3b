// JSON from untrusted sources: nlohmann-json, but stricter. All JSON that Shoal reads goes through
// here (tools/check_rules), in time and memory proportional to the text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

// Throws corrupt_data with `name` and the position for wrong syntax, nesting deeper than
// `max_depth`, a repeated key in an object, or anything but white space after the document.
// nlohmann would silently drop one value of a repeated key, and take a NUL byte for the end of the
// text.
nlohmann::json parse_json(std::string_view text, std::string_view name, int max_depth = 64);
// An integer outside 64 bits becomes a double. For a document that will be written again, `exact`
// throws corrupt_data instead.
enum class JsonIntegers : std::uint8_t { any, exact };
nlohmann::json read_json_file(const std::string& path, JsonIntegers integers = JsonIntegers::any);
// Keeps the keys of objects in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view name,
                                          JsonIntegers integers = JsonIntegers::any);

// Empty where the functions above throw: for text that may or may not be JSON.
std::optional<nlohmann::json> json_if_valid(std::string_view text);
std::optional<nlohmann::ordered_json> ordered_json_if_valid(std::string_view text);

}  // namespace shoal
