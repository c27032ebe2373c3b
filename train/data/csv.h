// The rules of CSV as Python's csv module and pandas apply them (dialect "excel").
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// A quotation mark opens a quotation only where it is the first character of a field; elsewhere in
// a field without quotation it is text. Within a quotation two marks stand for one, and commas and
// ends of lines are text. A mark that is not doubled closes the quotation; what follows up to the
// comma is text, further marks included. "\n", "\r" or "\r\n" ends a row.
class CsvReader {
 public:
  enum class Meaning : std::uint8_t { text, mark, comma, line_end };

  // What the next character means.
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
  // The first place at or behind `at` whose character may be something else than text; faster than
  // take() for each before it, which would change nothing.
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

// The fields of one row, which is given without the end of its last line. `is_open`: it ends within
// a quotation.
std::vector<std::string> split_csv(std::string_view row, bool& is_open);

}  // namespace shoal
