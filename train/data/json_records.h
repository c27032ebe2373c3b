// Reads the records of a JSON file: one per line, or the elements of an array.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/runtime/io/text_lines.h"

namespace shoal {

inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";  // in UTF-8

bool is_json_path(std::string_view path);  // .jsonl or .json

// A file has one record per line; an object may also span lines, and objects may share a line. A
// .json whose first character is "[" is one array of records, as in `datasets`. An array of
// strings, numbers or lists is "plain": each element becomes the field "text" of a record. One pass
// finds the records without parsing them.
class JsonRecords {
 public:
  struct Raw {
    std::string_view text = {};
    std::int64_t number = 0;  // 1-based line, or element of the array
  };

  // Skips a leading byte order mark. corrupt_data if a .jsonl is an array. `text` must outlive the
  // reader.
  JsonRecords(std::string_view text, std::string path);

  // The next non-blank record; false at the end. corrupt_data, with the line, if the array is
  // unterminated or followed by more content.
  bool next(Raw& record);
  bool is_array() const { return is_array_; }
  bool is_plain() const { return is_plain_; }
  static constexpr const char* kPlainField = "text";

 private:
  void take_objects(Raw& record);
  std::optional<std::size_t> object_end(std::size_t at);
  bool next_element(Raw& record);
  std::size_t element_end(std::size_t at) const;
  void pass_blanks();
  [[noreturn]] void broken(std::size_t at, const char* what) const;

  std::string_view text_;
  std::string path_;
  TextLines lines_;
  std::string_view rest_ = {};  // remainder of a line after an object
  bool is_array_ = false, is_plain_ = false, at_end_ = false;
  std::size_t tries_left_;  // budget of bytes for failed searches for an object's end
  std::size_t at_ = 0;      // position in the array
  std::int64_t number_ = 0;
};

}  // namespace shoal
