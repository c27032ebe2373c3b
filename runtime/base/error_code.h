// Reads an ErrorCode that another rank sent as a number.
#pragma once

#include <cstdint>
#include <optional>

#include "shoal/runtime/base/error.h"

namespace shoal {

// The ErrorCode with this number; nullopt if there is none.
inline std::optional<ErrorCode> error_code_of(std::int64_t number) {
  if (number < 0 || number > static_cast<std::int64_t>(ErrorCode::internal)) return std::nullopt;
  return static_cast<ErrorCode>(number);
}

}  // namespace shoal
