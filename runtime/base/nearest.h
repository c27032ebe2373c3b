// Finds the closest of several names, for "did you mean ...?" messages.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace shoal {

// Number of insertions, deletions, substitutions and swaps of neighbours that turn one string into
// the other (optimal string alignment).
std::int64_t edit_distance(std::string_view a, std::string_view b);

// The name with the smallest edit distance to `name`, ignoring the case of ASCII letters; the first
// of several equal ones. Empty if no name is close. A name is close if at most a third of the bytes
// differ, both in the whole name and in each word, or if `name` omits a part of it.
std::string nearest_name(std::string_view name, std::span<const std::string> names);

// "did you mean max_steps?", or `otherwise` if no name is close.
std::string did_you_mean(std::string_view name, std::span<const std::string> names,
                         std::string_view otherwise = {});

// "did you mean ring? There are direct, ring, tree"; without the question if no name is close. A
// long list is cut.
std::string names_there_are(std::string_view name, std::span<const std::string> names);

}  // namespace shoal
