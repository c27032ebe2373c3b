// Shows text from other sources (tensor and file names, a job's log lines, fields of a file) so
// that it cannot control the terminal. Programs print through here; tools/check_rules enforces it.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace shoal::terminal {

// Returns `text` with these characters made visible. All others stay, also newlines and tabs:
//   \x1b     control characters below space, and each byte that is not UTF-8
//   \u009b   DEL, U+0080 to U+009F, and characters that reorder text (Unicode UAX 9) or break
//            lines (U+2028, U+2029). In a JSON string the escape is the same character.
std::string visible(std::string_view text);

// Writes text that is a program's result, such as generated text: visible() if `stream` is a
// terminal, otherwise unchanged. It must consist of whole characters.
void write_result(std::FILE* stream, std::string_view text);

// Throws io, with the reason, if the text cannot be written to standard output. Standard error has
// no place to complain to.
void write(std::FILE* stream, std::string_view text);

// Throws io if anything that was written to standard output is lost, as on a full disk. Programs
// end with it, since a buffer is written last. A pipe whose reader stopped reading is no error.
void finish_output();

// fmt::print() of visible(formatted text), to a terminal or not. Throws as write() does.
template <typename... Args>
void print(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  terminal::write(stream, visible(fmt::format(format, std::forward<Args>(args)...)));
}
template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  // Qualified, since fmt::print() would be found too through the arguments.
  terminal::print(stdout, format, std::forward<Args>(args)...);
}

}  // namespace shoal::terminal
