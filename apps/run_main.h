// The frame of every program's main().
#pragma once

#include <functional>
#include <string>

namespace shoal::app {

// Returns the exit status of `body`. If `body` throws, prints "PROGRAM: reason" to standard error
// and returns the status of that kind of error (runtime/base/exit_status.h).
int run_main(const std::string& program, const std::function<int()>& body);

}  // namespace shoal::app
