// "Did you mean ...?": the closest of several names, for messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shoal {

// Insertions, deletions, substitutions and swaps of neighbours that turn one into the other
// (optimal string alignment).
std::int64_t edit_distance(std::string_view a, std::string_view b);

// The name with the smallest distance, the first of equals; empty when there are none.
std::string nearest_name(std::string_view name, std::span<const std::string> names);

}  // namespace shoal
