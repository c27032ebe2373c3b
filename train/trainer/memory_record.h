// What a run holds of a memory, for its log: bytes by tag.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal {

// NAME_bytes, NAME_peak_bytes and NAME_peak_by_tag, of what has held something.
void add_memory(nlohmann::ordered_json& record, std::string_view name,
                const CountingMemory& memory);
// A line for each tag that has held something, and one for all: now and at the peak.
std::vector<std::string> memory_lines(const CountingMemory& memory);

}  // namespace shoal
