// Prints the error with which a program ends.
#pragma once

#include <string>

namespace shoal {

// Prints "PROGRAM: TEXT" to standard error: one line, or one per problem.
void report_error(const std::string& program, const std::string& text);

}  // namespace shoal
