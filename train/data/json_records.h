// The records of a JSON file: one a line, or the elements of an array.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shoal/runtime/io/text_lines.h"

namespace shoal {

bool is_json_path(std::string_view path);  // .jsonl or .json

// A file has a record a line; or objects that go over several lines, or stand together in one; or,
// if it is a .json, it is one array of records, as `datasets` reads it: its first character
// decides. An array of texts, numbers or lists is plain: each of them is the field "text" of a
// record. Records are found without being parsed, in one pass.
class JsonRecords {
 public:
  struct Raw {
    std::string_view text = {};
    std::int64_t number = 0;  // of the line, or of the array's element, from 1
  };

  // A byte order mark in front is passed over. corrupt_data for a .jsonl that is an array. `text`
  // must outlive the reader.
  JsonRecords(std::string_view text, std::string path);

  // The next record that is not blank; false behind the last. corrupt_data, with the line, where
  // the array ends too early or is followed by something.
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
  std::string_view rest_ = {};  // of a line, behind an object
  bool is_array_ = false, is_plain_ = false, at_end_ = false;
  std::size_t tries_left_;  // bytes that may yet be searched in vain for an object's end
  std::size_t at_ = 0;      // in the array
  std::int64_t number_ = 0;
};

}  // namespace shoal
