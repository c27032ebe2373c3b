#include "shoal/train/trainer/memory_record.h"

#include <fmt/format.h>

#include "shoal/train/trainer/log_format.h"

namespace shoal {

void add_memory(nlohmann::ordered_json& record, std::string_view name,
                const CountingMemory& memory) {
  const MemoryUsage total = memory.total();
  record[fmt::format("{}_bytes", name)] = total.current;
  record[fmt::format("{}_peak_bytes", name)] = total.peak;
  nlohmann::ordered_json& peaks = record[fmt::format("{}_peak_by_tag", name)] =
      nlohmann::ordered_json::object();
  for (std::size_t i = 0; i < kMemoryTags; ++i)
    if (const MemoryUsage usage = memory.usage(static_cast<MemoryTag>(i)); usage.peak > 0)
      peaks[std::string(to_string(static_cast<MemoryTag>(i)))] = usage.peak;
}

std::vector<std::string> memory_lines(const CountingMemory& memory) {
  std::vector<std::string> lines;
  const auto add = [&lines](std::string_view name, const MemoryUsage& usage) {
    lines.push_back(fmt::format("{:<14} {:>12} peak {:>12}", name, format_bytes(usage.current),
                                format_bytes(usage.peak)));
  };
  for (std::size_t i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    if (memory.usage(tag).peak > 0) add(to_string(tag), memory.usage(tag));
  }
  add("all", memory.total());
  return lines;
}

}  // namespace shoal
