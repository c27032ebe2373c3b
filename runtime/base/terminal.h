// Text that others wrote (tensor and file names, log lines of a job, fields of a file), shown so
// that it cannot command the terminal. Programs print through here; tools/check_rules enforces it.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace shoal::terminal {

// `text` with these made visible; the rest, newlines and tabs too, stays as it is:
//   \x1b     control characters below a space, and each byte that is not UTF-8
//   \u009b   DEL, U+0080 to U+009F, and the characters that reorder text (Unicode UAX 9) or break
//            lines (U+2028, U+2029). In a JSON string these are the same characters.
std::string visible(std::string_view text);

// A text that is itself the result of a program, such as a generated one: visible() if `stream` is
// a terminal; else unchanged. It must be whole characters.
void write_result(std::FILE* stream, std::string_view text);

// fmt::print() of what visible() makes of the formatted text, to a terminal or not. Throws as
// fmt::print() does.
template <typename... Args>
void print(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(stream, "{}", visible(fmt::format(format, std::forward<Args>(args)...)));
}
template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  // Qualified: its arguments are fmt's, whose print() would be found as well.
  terminal::print(stdout, format, std::forward<Args>(args)...);
}

}  // namespace shoal::terminal
