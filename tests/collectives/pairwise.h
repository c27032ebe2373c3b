// Covering arrays: few rows in which every allowed pair of values of two axes occurs together
// (Cohen, Dalal, Fredman and Patton, "The AETG System", 1997). The result is deterministic.
#pragma once

#include <functional>
#include <vector>

namespace shoal::collectives::test {

using Row = std::vector<int>;  // an index into each axis

// `sizes`: the number of values of each axis. `allowed(a, i, b, j)`, with a < b: whether value i of
// axis a may occur with value j of axis b. `variant`: selects another covering of the same pairs.
// Throws invalid_argument if an allowed pair fits no row.
std::vector<Row> pairwise_rows(const std::vector<int>& sizes,
                               const std::function<bool(int a, int i, int b, int j)>& allowed,
                               int variant = 0);

}  // namespace shoal::collectives::test
