// ErrorCodes that travel between ranks as numbers.
#pragma once

#include <cstdint>
#include <optional>

#include "shoal/runtime/base/error.h"

namespace shoal {

// Nothing where `number`, which another rank sent, is no ErrorCode.
inline std::optional<ErrorCode> error_code_of(std::int64_t number) {
  if (number < 0 || number > static_cast<std::int64_t>(ErrorCode::internal)) return std::nullopt;
  return static_cast<ErrorCode>(number);
}

}  // namespace shoal
