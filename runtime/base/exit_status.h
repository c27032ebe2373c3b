// The exit statuses of all programs, and the table that `shoal help exit-status` prints.
#pragma once

#include <exception>
#include <span>

#include "shoal/runtime/base/error.h"

namespace shoal {

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongOptions = 2;
inline constexpr int kBadInput = 3;
inline constexpr int kNoResources = 4;
inline constexpr int kPeersFailed = 5;

// The caught exception as an Error; out of memory and foreign exceptions are converted.
Error error_of(const std::exception& caught);

// The status with which a program ends after an error of this kind.
int exit_status(ErrorCode code);

struct ExitRow {
  const char* subject;  // a status; or a program that differs
  const char* meaning;
};
std::span<const ExitRow> exit_statuses();
std::span<const ExitRow> exit_status_exceptions();

}  // namespace shoal
