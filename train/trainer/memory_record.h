// A memory's usage for the run's log: bytes by tag.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal {

// Adds NAME_bytes, NAME_peak_bytes and NAME_peak_by_tag for tags that have been used.
void add_memory(nlohmann::ordered_json& record, std::string_view name,
                const CountingMemory& memory);
// One line per used tag and one for the total: current and peak bytes.
std::vector<std::string> memory_lines(const CountingMemory& memory);

}  // namespace shoal
