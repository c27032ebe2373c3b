// Shows text from other sources (tensor and file names, a job's log lines, fields of a file) so
// that it cannot control the terminal. Programs print through here; tools/check_rules enforces it.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace shoal::terminal {

// Returns `text` with these characters made visible. All others, such as newlines and tabs, stay:
//   \x1b     control characters below space, and each byte that is not UTF-8
//   \u009b   DEL, U+0080 to U+009F, and characters that reorder text (Unicode UAX 9) or break
//            lines (U+2028, U+2029). In JSON this escape is the same character.
std::string visible(std::string_view text);

// Writes a program's result, such as generated text. Applies visible() if `stream` is a terminal;
// otherwise the text is unchanged. `text` must consist of whole characters.
void write_result(std::FILE* stream, std::string_view text);

// Throws io, with the reason, if the text cannot be written to standard output. Failures of
// standard error are ignored, since they cannot be reported.
void write(std::FILE* stream, std::string_view text);

// Throws io if output to standard output was lost, as on a full disk. Programs call it last, since
// buffered output is written only at the end. It is no error if the reader of a pipe stopped
// reading.
void finish_output();

// Prints visible(formatted text), to a terminal or not. Throws as write() does.
template <typename... Args>
void print(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  terminal::write(stream, visible(fmt::format(format, std::forward<Args>(args)...)));
}
template <typename... Args>
void print(fmt::format_string<Args...> format, Args&&... args) {
  // Qualified: otherwise argument-dependent lookup could also find fmt::print().
  terminal::print(stdout, format, std::forward<Args>(args)...);
}

}  // namespace shoal::terminal
