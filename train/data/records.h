// Rows with named fields, read from GLUE's TSV, CSV or JSON records.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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
};  // skip: omit bad rows; stop: reject the file at the first one

struct RecordOptions {
  // Field names for a TSV or CSV without a header line. Empty: its first line is the header.
  std::vector<std::string> columns = {};
  std::vector<std::string> needed = {};  // a row that lacks one of these is bad
  BadRecords bad = BadRecords::stop;
};

using ColumnNames = std::shared_ptr<const std::vector<std::string>>;

// One row. A field of a TSV or CSV is text that may be read as a number; a JSON field has a type of
// its own. A null field counts as missing.
class Record {
 public:
  enum class Kind : std::uint8_t { text, number, boolean, list, object };
  enum class Item : std::uint8_t { none, text, whole, fraction, boolean };
  struct List {
    std::vector<std::string> items = {};      // numbers and booleans as their JSON text
    Item type = Item::none;                   // of the first item
    std::string not_text = {};                // shows the first item that is no text; empty: none
    std::string neither_text_nor_value = {};  // shows the first that is no number or boolean either
    std::string mixed = {};                   // shows two items of different types; empty: none
  };
  using Lists = std::map<std::size_t, List>;  // keyed by field index
  // `texts` has one entry per name; entries of lists are ignored. `kinds`: one per
  // name; empty for a TSV or CSV.
  Record(std::string place, ColumnNames names, std::vector<std::string> texts,
         std::vector<Kind> kinds = {}, Lists lists = {})
      : place_(std::move(place)),
        names_(std::move(names)),
        texts_(std::move(texts)),
        kinds_(std::move(kinds)),
        lists_(std::move(lists)) {}

  const std::string& place() const { return place_; }  // "train.tsv, line 7", for messages
  const std::vector<std::string>& names() const { return *names_; }
  bool has(std::string_view name) const { return find(name) < names_->size(); }
  // nullopt for a TSV or CSV, whose fields have no type. Throws as text() if the field is missing.
  std::optional<Kind> kind(std::string_view name) const;
  void check(std::string_view name) const {
    need(name);
  }  // throws as text() does if the field is missing
  // not_found names the nearest field. corrupt_data: the field has another type, or is not a
  // number. All messages begin with the place.
  const std::string& text(std::string_view name) const;
  const std::string& value(std::string_view name) const;       // text, number or boolean
  const std::string& object(std::string_view name) const;      // its JSON text
  const std::string* find_text(std::string_view name) const;   // null: text() would throw
  const std::string* find_value(std::string_view name) const;  // null: value() would throw
  double number(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  const std::vector<std::string>& texts(std::string_view name) const;  // a list of texts
  // A list of texts, numbers or booleans, all of one type; sets `type` to it.
  const std::vector<std::string>& values(std::string_view name, Item* type = nullptr) const;

 private:
  std::size_t find(std::string_view name) const;  // names().size(): not found
  std::size_t need(std::string_view name) const;
  Kind kind_of(std::size_t field) const { return kinds_.empty() ? Kind::text : kinds_[field]; }
  const List& list(std::string_view name) const;
  [[noreturn]] void wrong_kind(std::size_t field, const char* wanted) const;
  [[noreturn]] void wrong_item(std::string_view name, const std::string& item,
                               const char* wanted) const;
  [[noreturn]] void wrong(std::string_view name, std::string_view text, const char* wanted) const;

  std::string place_;
  ColumnNames names_;
  std::vector<std::string> texts_;
  std::vector<Kind> kinds_;
  Lists lists_;
};

// Maps the file, indexes its rows in one pass, and parses a row when it is requested.
class RecordFile {
 public:
  // The file's ending selects the format: .tsv or .txt (tabs, no quoting), .csv (csv.h), .jsonl or
  // .json (json_records.h). "\n", "\r\n" or "\r" ends a line. Skips a byte order mark and blank
  // lines. A row is bad if its number of fields differs from the header's, a quote stays open, the
  // JSON is not an object, the text is not UTF-8, or a needed field is missing. A bad row is
  // corrupt_data with its line, or is skipped and counted, depending on `options`.
  explicit RecordFile(const std::string& path, const RecordOptions& options = {});

  // First row of a TSV or CSV, possibly a header. Empty: the file has no rows.
  static std::vector<std::string> first_fields(const std::string& path);

  const std::string& path() const { return map_->path(); }
  RecordFormat format() const { return format_; }
  std::int64_t size() const { return static_cast<std::int64_t>(rows_.size()); }
  bool is_plain() const { return is_plain_; }  // a JSON array without objects; the field is "text"
  // JSON: the fields of all rows, as in `datasets`, in the order in which they first occur.
  const std::vector<std::string>& columns() const { return *columns_; }
  // Thread-safe. 0 <= row < size(), else invalid_argument.
  Record get(std::int64_t row) const;
  // corrupt_data if JSON has no row, and so no field. A TSV or CSV has columns without rows.
  void need_rows() const;
  // invalid_argument: no row has the field. The message says so if the JSON records are not
  // objects.
  void need_column(const std::string& name, const std::string& remedy) const;
  // Number of skipped rows, and the error message of the first.
  std::int64_t skipped() const { return skipped_; }
  const std::string& first_skipped() const { return first_skipped_; }

 private:
  class Reader;
  class Union;
  struct Row {
    std::size_t begin, end;  // bytes, without the line's end
    std::int64_t number;     // 1-based first line, or record of a JSON array
  };
  explicit RecordFile(std::shared_ptr<MappedFile> map);
  std::vector<std::string> split(const Row& row) const;
  Record read(const Row& row) const;
  bool is_bad(const Row& row, const std::vector<std::string>& needed, Union& fields) const;
  bool is_bad_json(std::string_view text, const std::vector<std::string>& needed,
                   Union& fields) const;
  std::string place_of(const Row& row) const;

  std::shared_ptr<MappedFile> map_;
  std::string_view text_;
  RecordFormat format_;
  bool is_array_ = false, is_plain_ = false;  // JSON only
  ColumnNames columns_;
  std::vector<Row> rows_;
  std::int64_t skipped_ = 0;
  std::string first_skipped_;
};

}  // namespace shoal
