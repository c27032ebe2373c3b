// JSON from untrusted sources: nlohmann-json, but stricter. Shoal reads all JSON with these
// functions (enforced by tools/check_rules). They take time and memory proportional to the text.
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
// How to read integers that need more than 64 bits. `any`: they become doubles. `exact`, for a
// document that will be written again: throws corrupt_data.
enum class JsonIntegers : std::uint8_t { any, exact };
nlohmann::json read_json_file(const std::string& path, JsonIntegers integers = JsonIntegers::any);
// Keeps the keys of objects in the order of the text.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view name,
                                          JsonIntegers integers = JsonIntegers::any);

// For text that may or may not be JSON. Return nullopt where the functions above throw.
std::optional<nlohmann::json> json_if_valid(std::string_view text);
std::optional<nlohmann::ordered_json> ordered_json_if_valid(std::string_view text);

}  // namespace shoal
