// The line that a program ends with when it fails.
#pragma once

#include <string>

namespace shoal {

// Prints "PROGRAM: TEXT" to standard error: one line, or one per problem.
void report_error(const std::string& program, const std::string& text);

}  // namespace shoal
