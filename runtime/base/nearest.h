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

// The name with the smallest distance, ignoring the case of ASCII letters; the first if several are
// equal. Empty if none is near: a slip changes at most a third of the longer one's bytes, and of
// each of its words; or `name` leaves out a part of the other.
std::string nearest_name(std::string_view name, std::span<const std::string> names);

// "did you mean max_steps?", or `otherwise` if no name is close.
std::string did_you_mean(std::string_view name, std::span<const std::string> names,
                         std::string_view otherwise = {});

// "did you mean ring? There are direct, ring, tree", without the first sentence if no name is
// close. Lists only the first names if there are many.
std::string names_there_are(std::string_view name, std::span<const std::string> names);

}  // namespace shoal
