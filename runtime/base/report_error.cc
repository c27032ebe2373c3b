#include "shoal/runtime/base/report_error.h"

#include <cstdio>

#include "shoal/runtime/base/terminal.h"

namespace shoal {

void report_error(const std::string& program, const std::string& text) {
  std::fflush(stdout);
  terminal::print(stderr, "{}: {}\n", program, text);
}

}  // namespace shoal
