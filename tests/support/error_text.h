// What a call threw, as users read it.
#pragma once

#include <functional>
#include <string>

#include "shoal/runtime/base/error.h"

namespace shoal::test {

// Of the Error that `body` throws; of another exception nothing is caught.
inline std::string error_text(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace shoal::test
