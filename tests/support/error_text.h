// The error texts that users read.
#pragma once

#include <functional>
#include <string>

#include "shoal/runtime/base/error.h"

namespace shoal::test {

// Runs `body` and returns the text of the Error it throws. Other exceptions pass through.
inline std::string error_text(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace shoal::test
