// Covering arrays: few rows in which every allowed pair of values of two axes comes up together
// (Cohen, Dalal, Fredman and Patton, "The AETG System", 1997), made deterministically.
#pragma once

#include <functional>
#include <vector>

namespace shoal::collectives::test {

using Row = std::vector<int>;  // an index into each axis

// `sizes`: how many values each axis has. `allowed(a, i, b, j)`, a < b: value i of axis a may stand
// beside value j of axis b. `variant`: another covering of the same pairs. Throws invalid_argument
// when some pair is allowed but fits no row.
std::vector<Row> pairwise_rows(const std::vector<int>& sizes,
                               const std::function<bool(int a, int i, int b, int j)>& allowed,
                               int variant = 0);

}  // namespace shoal::collectives::test
