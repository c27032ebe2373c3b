#include "shoal/train/tasks/task.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace shoal {

nlohmann::json Task::configuration() const { return {}; }

nlohmann::json Task::configuration_of(const nlohmann::json& config,
                                      std::string_view /*source*/) const {
  return config;
}

Tensor Task::no_targets(std::int64_t rows, std::int64_t length, MemoryResource& memory) const {
  Tensor targets = Tensor::empty({rows, length}, DType::i32, memory, MemoryTag::data);
  std::fill_n(targets.data<std::int32_t>(), targets.count(), kIgnoreLabel);
  return targets;
}

}  // namespace shoal
