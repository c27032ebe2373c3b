// Splits text into lines by Python's universal newlines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

// "\n", "\r\n" and a lone "\r" each end a line. There is no empty line after a final line end.
// Takes linear time, however long the lines are.
//
//   std::string_view line;
//   for (TextLines lines(text); lines.next(line);) ...
class TextLines {
 public:
  explicit TextLines(std::string_view text, std::size_t begin = 0) : text_(text), at_(begin) {}

  // The next line without its line end; false after the last one.
  bool next(std::string_view& line) {
    if (at_ >= text_.size()) return false;
    if (newline_ == kUnknown || newline_ < at_)
      newline_ = std::min(text_.find('\n', at_), text_.size());
    const std::string_view whole = text_.substr(at_, newline_ - at_);
    const std::size_t carriage_return = whole.find('\r');
    line = whole.substr(0, carriage_return);
    at_ += line.size() + 1;
    if (carriage_return != std::string_view::npos && at_ == newline_ && at_ < text_.size()) ++at_;
    return true;
  }
  // Continues at offset `at`, which is at or after position().
  void skip_to(std::size_t at) { at_ = at; }
  // Offset of the next line.
  std::size_t position() const { return std::min(at_, text_.size()); }

 private:
  static constexpr std::size_t kUnknown = std::string_view::npos;
  std::string_view text_;
  std::size_t at_;
  std::size_t newline_ = kUnknown;  // the first "\n" at or after at_
};

// Text as Python's open() reads it: every line end becomes "\n".
inline std::string with_newlines(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\r', at), text.size());
    result += text.substr(at, end - at);
    if (end < text.size()) result += '\n';
    at = end + (text.substr(end).starts_with("\r\n") ? 2 : 1);
  }
  return result;
}

}  // namespace shoal
