// Rows with named fields from a file: GLUE's TSV, CSV, JSON records.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/runtime/io/files.h"

namespace shoal {

enum class RecordFormat { tsv, csv, json };
enum class BadRecords {
  stop,
  skip
};  // refuse the file at its first bad row, or leave such rows out

struct RecordOptions {
  // Names of the fields where a TSV or CSV has no header line. Empty: its first line has them.
  std::vector<std::string> columns = {};
  std::vector<std::string> needed = {};  // a row without one of these is bad
  BadRecords bad = BadRecords::stop;
};

using ColumnNames = std::shared_ptr<const std::vector<std::string>>;

// One row. A field of a JSON record may be a list of texts (tokens, tags); numbers and truth values
// are their JSON text; null is a missing field.
class Record {
 public:
  using Lists = std::map<std::size_t, std::vector<std::string>>;  // by the field's number
  // As many texts as names. The text of a field that is a list is not used.
  Record(std::string place, ColumnNames names, std::vector<std::string> texts, Lists lists = {})
      : place_(std::move(place)),
        names_(std::move(names)),
        texts_(std::move(texts)),
        lists_(std::move(lists)) {}

  const std::string& place() const { return place_; }  // "train.tsv, line 7", for messages
  const std::vector<std::string>& names() const { return *names_; }
  bool has(std::string_view name) const { return find(name) < names_->size(); }
  void check(std::string_view name) const {
    need(name);
  }  // throws as text() does for a missing one
  // not_found names the nearest field; a list where a text is asked for, or a text that is no
  // number, is corrupt_data. All messages begin with the place.
  const std::string& text(std::string_view name) const;
  const std::string* find_text(std::string_view name) const;  // null: text() would throw
  double number(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  const std::vector<std::string>& list(std::string_view name) const;

 private:
  std::size_t find(std::string_view name) const;  // names().size(): there is none
  std::size_t need(std::string_view name) const;
  [[noreturn]] void wrong(std::string_view name, std::string_view text, const char* wanted) const;

  std::string place_;
  ColumnNames names_;
  std::vector<std::string> texts_;
  Lists lists_;
};

// The file is mapped, looked through once, and its rows are read where they are asked for.
class RecordFile {
 public:
  // The format by the file's ending: .tsv or .txt (tabs, no quotation), .csv (csv.h), .jsonl or
  // .json (json_records.h). "\n", "\r\n" or "\r" ends a line. A byte order mark is passed over,
  // blank lines are too. A bad row (another number of fields than the header has, an open
  // quotation, JSON that is no object, text that is not UTF-8, a needed field missing) is
  // corrupt_data with its line, or skipped and counted, as the options say.
  explicit RecordFile(const std::string& path, const RecordOptions& options = {});

  // Of a file's first row: a TSV's or CSV's fields, which may be a header; the names of a JSON
  // record's, in alphabetical order. Empty where there is none.
  static std::vector<std::string> first_fields(const std::string& path);

  const std::string& path() const { return map_->path(); }
  RecordFormat format() const { return format_; }
  std::int64_t size() const { return static_cast<std::int64_t>(rows_.size()); }
  const std::vector<std::string>& columns() const { return *columns_; }  // of JSON: the first row's
  std::string column_list() const;  // the first of them, for messages: "a, b, c and 7 more"
  // Any thread. 0 <= row < size(), else invalid_argument.
  Record get(std::int64_t row) const;
  // Rows left out, and what was wrong with the first of them.
  std::int64_t skipped() const { return skipped_; }
  const std::string& first_skipped() const { return first_skipped_; }

 private:
  class Reader;
  struct Row {
    std::size_t begin, end;  // bytes, without the line's end
    std::int64_t number;     // of its first line, or of an array's record, from 1
  };
  explicit RecordFile(std::shared_ptr<MappedFile> map);
  std::vector<std::string> split(const Row& row) const;
  Record read(const Row& row) const;
  bool is_bad(const Row& row, const std::vector<std::string>& needed) const;
  std::string place_of(const Row& row) const;

  std::shared_ptr<MappedFile> map_;
  std::string_view text_;
  RecordFormat format_;
  bool is_array_ = false, is_plain_ = false;  // of JSON
  ColumnNames columns_;
  std::vector<Row> rows_;
  std::int64_t skipped_ = 0;
  std::string first_skipped_;
};

}  // namespace shoal
