// CSV parsing rules of Python's csv module and pandas (dialect "excel").
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// A quote opens a quoted field only as the field's first character; elsewhere in an unquoted field
// it is text. Inside quotes, a doubled quote represents one quote, and commas and line ends are
// text. A single quote closes the quoted part; the rest up to the comma is text, including further
// quotes. "\n", "\r" or "\r\n" ends a row.
class CsvReader {
 public:
  enum class Meaning : std::uint8_t { text, mark, comma, line_end };

  // Consumes the next character and returns its meaning.
  Meaning take(char c) {
    switch (state_) {
      case State::quoted:
        if (c != '"') return Meaning::text;
        state_ = State::after_mark;
        return Meaning::mark;
      case State::after_mark:
        if (c != '"') break;
        state_ = State::quoted;
        return Meaning::text;
      case State::field_begin:
        if (c != '"') break;
        state_ = State::quoted;
        return Meaning::mark;
      case State::unquoted:
        break;
    }
    if (c == ',' || c == '\n' || c == '\r') {
      state_ = State::field_begin;
      return c == ',' ? Meaning::comma : Meaning::line_end;
    }
    state_ = State::unquoted;
    return Meaning::text;
  }
  // First position at or after `at` whose character may not be plain text. Skipping to it is
  // equivalent to calling take() on each character in between, and faster.
  std::size_t pass_text(std::string_view text, std::size_t at) const {
    if (state_ == State::quoted) return std::min(text.find('"', at), text.size());
    if (state_ == State::unquoted)
      while (at < text.size() && text[at] != ',' && text[at] != '\n' && text[at] != '\r') ++at;
    return at;
  }
  bool in_quotation() const { return state_ == State::quoted; }

 private:
  enum class State : std::uint8_t { field_begin, unquoted, quoted, after_mark };
  State state_ = State::field_begin;
};

// Fields of one row, given without its final line end. Sets `is_open` if the row ends inside
// quotes.
std::vector<std::string> split_csv(std::string_view row, bool& is_open);

}  // namespace shoal
