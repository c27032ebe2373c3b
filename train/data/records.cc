#include "shoal/train/data/records.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/text_encoding.h"
#include "shoal/runtime/io/text_lines.h"
#include "shoal/train/data/csv.h"
#include "shoal/train/data/json_records.h"
#include "shoal/train/data/labels.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

RecordFormat format_of(const std::string& path) {
  const std::string ending = std::filesystem::path(path).extension();
  if (ending == ".tsv" || ending == ".txt") return RecordFormat::tsv;
  if (ending == ".csv") return RecordFormat::csv;
  if (is_json_path(path)) return RecordFormat::json;
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: rows of an unknown format", path),
              "name the file .tsv, .csv or .jsonl");
}

Record::Kind kind_of_json(const nlohmann::json& value) {
  if (value.is_string()) return Record::Kind::text;
  if (value.is_number()) return Record::Kind::number;
  if (value.is_boolean()) return Record::Kind::boolean;
  return value.is_array() ? Record::Kind::list : Record::Kind::object;
}

// The text of a scalar value, the JSON text of an object; empty for a list.
std::string scalar_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_array() ? std::string() : value.dump();
}

Record::Item item_type_of(const nlohmann::json& item) {
  if (item.is_string()) return Record::Item::text;
  if (item.is_boolean()) return Record::Item::boolean;
  if (item.is_number_integer()) return Record::Item::whole;
  return item.is_number() ? Record::Item::fraction : Record::Item::none;
}

Record::List list_of(const nlohmann::json& items) {
  Record::List list;
  list.items.reserve(items.size());
  for (const nlohmann::json& item : items) {
    list.items.push_back(scalar_text(item));
    const Record::Item type = item_type_of(item);
    if (list.items.size() == 1) list.type = type;
    if (type != list.type && list.mixed.empty())
      list.mixed =
          fmt::format("{} and {}", shortened(list.items[0], 80), shortened(list.items.back(), 80));
    if (item.is_string()) continue;
    const bool is_value = type != Record::Item::none;
    std::string shown = item.is_array() ? "a list" : item.is_object() ? "an object" : item.dump();
    if (!is_value && list.neither_text_nor_value.empty()) list.neither_text_nor_value = shown;
    if (list.not_text.empty()) list.not_text = std::move(shown);
  }
  return list;
}

// Runs before any parser, whose errors would not name the encoding.
void check_text(std::string_view text, const std::string& place, const char* unit) {
  const std::int64_t at = first_invalid_utf8(text);
  if (at < 0) return;
  throw Error(
      ErrorCode::corrupt_data,
      fmt::format(
          "{}: byte 0x{:02x} at offset {} of the {} is not UTF-8", place,
          static_cast<unsigned>(static_cast<unsigned char>(text[static_cast<std::size_t>(at)])), at,
          unit),
      "convert the file: iconv -f ITS-ENCODING -t UTF-8 (UTF-16 or ISO-8859-1, most often)");
}

std::vector<std::string> split_at_tabs(std::string_view text) {
  std::vector<std::string> fields;
  fields.reserve(1 + static_cast<std::size_t>(std::ranges::count(text, '\t')));
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\t', at), text.size());
    fields.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return fields;
}

Record json_record(std::string_view text, std::string place, const char* unit, bool is_plain) {
  check_text(text, place, unit);
  nlohmann::json value = parse_json(text, place);
  if (is_plain) {
    nlohmann::json fields = nlohmann::json::object();
    fields[JsonRecords::kPlainField] = std::move(value);
    value = std::move(fields);
  }
  if (!value.is_object())
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("{}: {} where an object with fields is wanted", place, value.type_name()),
        value.is_array() ? "if the whole file is one array, name it .json" : "");
  std::vector<std::string> names, texts;
  std::vector<Record::Kind> kinds;
  Record::Lists lists;
  for (const auto& [name, item] : value.items()) {
    if (item.is_null()) continue;
    if (item.is_array()) lists[names.size()] = list_of(item);
    names.push_back(name);
    texts.push_back(scalar_text(item));
    kinds.push_back(kind_of_json(item));
  }
  return {std::move(place), std::make_shared<const std::vector<std::string>>(std::move(names)),
          std::move(texts), std::move(kinds), std::move(lists)};
}

void check_names(const std::vector<std::string>& names, const std::string& path) {
  std::unordered_set<std::string_view> met;
  for (const std::string& name : names)
    if (!name.empty() && !met.insert(name).second)
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("{}: two columns are called '{}'", path, shortened(name)),
                  "give one of them another name");
}

}  // namespace

std::size_t Record::find(std::string_view name) const {
  return static_cast<std::size_t>(std::find(names_->begin(), names_->end(), name) -
                                  names_->begin());
}

std::size_t Record::need(std::string_view name) const {
  const std::size_t field = find(name);
  if (field < names_->size()) return field;
  // The suggestion is in the message itself, because a skipped row's remedy is not shown.
  throw_error(ErrorCode::not_found, "{}: there is no field '{}'; {}", place_, shortened(name),
              names_there_are(name, *names_));
}

void Record::wrong(std::string_view name, std::string_view text, const char* wanted) const {
  throw_error(ErrorCode::corrupt_data, "{}: '{}' is '{}', not {}", place_, shortened(name),
              shortened(text), wanted);
}

void Record::wrong_kind(std::size_t field, const char* wanted) const {
  const std::string& name = (*names_)[field];
  switch (kind_of(field)) {
    case Kind::list:
    case Kind::object:
      throw_error(ErrorCode::corrupt_data, "{}: '{}' is {}, not {}", place_, shortened(name),
                  kind_of(field) == Kind::list ? "a list" : "an object", wanted);
    case Kind::text:
      throw_error(ErrorCode::corrupt_data, "{}: '{}' is the text '{}', not {}", place_,
                  shortened(name), shortened(texts_[field]), wanted);
    case Kind::number:
    case Kind::boolean:
      break;
  }
  throw_error(ErrorCode::corrupt_data, "{}: '{}' is {}, not {}", place_, shortened(name),
              texts_[field], wanted);
}

std::optional<Record::Kind> Record::kind(std::string_view name) const {
  const std::size_t field = need(name);
  return kinds_.empty() ? std::nullopt : std::optional(kinds_[field]);
}

const std::string& Record::text(std::string_view name) const {
  const std::size_t field = need(name);
  if (kind_of(field) != Kind::text) wrong_kind(field, "a text");
  return texts_[field];
}

const std::string& Record::value(std::string_view name) const {
  const std::size_t field = need(name);
  if (kind_of(field) >= Kind::list) wrong_kind(field, "a text or a number");
  return texts_[field];
}

const std::string& Record::object(std::string_view name) const {
  const std::size_t field = need(name);
  if (kind_of(field) != Kind::object) wrong_kind(field, "an object");
  return texts_[field];
}

const std::string* Record::find_text(std::string_view name) const {
  const std::size_t field = find(name);
  return field == names_->size() || kind_of(field) != Kind::text ? nullptr : &texts_[field];
}

const std::string* Record::find_value(std::string_view name) const {
  const std::size_t field = find(name);
  return field == names_->size() || kind_of(field) >= Kind::list ? nullptr : &texts_[field];
}

double Record::number(std::string_view name) const {
  const std::size_t field = need(name);
  if (!kinds_.empty() && kinds_[field] != Kind::number) wrong_kind(field, "a number");
  const std::string_view text = bare_number(texts_[field]);
  double value = 0;
  if (const auto [at, error] = std::from_chars(text.begin(), text.end(), value);
      error != std::errc() || at != text.end())
    wrong(name, texts_[field], "a number");
  return value;
}

std::int64_t Record::integer(std::string_view name) const {
  const std::string& text = value(name);
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  if (const auto [at, error] = std::from_chars(text.data(), end, value);
      error != std::errc() || at != end)
    wrong(name, text, "a whole number");
  return value;
}

const Record::List& Record::list(std::string_view name) const {
  const std::size_t field = need(name);
  const auto list = lists_.find(field);
  if (list == lists_.end()) wrong_kind(field, "a list");
  return list->second;
}

void Record::wrong_item(std::string_view name, const std::string& item, const char* wanted) const {
  throw_error(ErrorCode::corrupt_data, "{}: '{}' holds {}, not {}", place_, shortened(name), item,
              wanted);
}

const std::vector<std::string>& Record::texts(std::string_view name) const {
  const List& list = this->list(name);
  if (!list.not_text.empty()) wrong_item(name, list.not_text, "a text");
  return list.items;
}

const std::vector<std::string>& Record::values(std::string_view name, Item* type) const {
  const List& list = this->list(name);
  if (!list.neither_text_nor_value.empty())
    wrong_item(name, list.neither_text_nor_value, "a text or a number");
  if (!list.mixed.empty()) wrong_item(name, list.mixed, "values of one type");
  if (type != nullptr) *type = list.type;
  return list.items;
}

// The names of all fields that rows have.
class RecordFile::Union {
 public:
  void add(const std::string& name) {
    if (const auto [place, is_new] = met_.insert(name); is_new) order_.push_back(&*place);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    all.reserve(order_.size());
    for (const std::string* name : order_) all.push_back(*name);
    return all;
  }

 private:
  std::unordered_set<std::string> met_;
  std::vector<const std::string*> order_;
};

// Finds the rows of a file in one pass.
class RecordFile::Reader {
 public:
  explicit Reader(const RecordFile& file)
      : text_(file.text_),
        is_csv_(file.format_ == RecordFormat::csv),
        at_(text_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0),
        lines_(text_, at_) {
    refuse_unmarked_utf16(text_, file.path());
    if (file.format_ == RecordFormat::json) json_.emplace(text_, file.path());
  }

  bool is_array() const { return json_ && json_->is_array(); }
  bool is_plain() const { return json_ && json_->is_plain(); }

  // Advances to the next non-blank row.
  bool next(Row& row) { return json_ ? next_json(row) : is_csv_ ? next_csv(row) : next_line(row); }

 private:
  std::size_t offset_of(std::string_view part) const {
    return static_cast<std::size_t>(part.data() - text_.data());
  }
  bool next_json(Row& row) {
    JsonRecords::Raw raw;
    if (!json_->next(raw)) return false;
    const std::size_t begin = offset_of(raw.text);
    row = {begin, begin + raw.text.size(), raw.number};
    return true;
  }
  // TSV. A line of only tabs is a row of empty fields.
  bool next_line(Row& row) {
    std::string_view line;
    while (lines_.next(line)) {
      ++line_;
      if (line.empty()) continue;
      const std::size_t begin = offset_of(line);
      row = {begin, begin + line.size(), line_};
      return true;
    }
    return false;
  }
  bool next_csv(Row& row) {
    while (at_ < text_.size()) {
      row = {at_, text_.size(), ++line_};
      pass_row(row);
      const std::string_view whole = text_.substr(row.begin, row.end - row.begin);
      if (whole.find_first_not_of(" \t") != whole.npos) return true;
    }
    return false;
  }
  void pass_row(Row& row) {
    CsvReader reader;
    for (;;) {
      if (!reader.in_quotation()) at_ = reader.pass_text(text_, at_);
      if (at_ >= text_.size()) return;
      const char c = text_[at_++];
      const bool ends_line =
          c == '\n' || (c == '\r' && (at_ == text_.size() || text_[at_] != '\n'));
      if (reader.take(c) == CsvReader::Meaning::line_end) {
        row.end = at_ - 1;
        if (!ends_line) ++at_;
        return;
      }
      if (ends_line) ++line_;
    }
  }

  std::string_view text_;
  bool is_csv_;
  std::size_t at_;  // CSV: start of the next row
  TextLines lines_;
  std::int64_t line_ = 0;
  std::optional<JsonRecords> json_;
};

RecordFile::RecordFile(std::shared_ptr<MappedFile> map)
    : map_(std::move(map)),
      text_(reinterpret_cast<const char*>(map_->bytes().data()), map_->bytes().size()),
      format_(format_of(map_->path())) {}

std::vector<std::string> RecordFile::first_fields(const std::string& path) {
  RecordFile file(MappedFile::open(path));
  Reader reader(file);
  SHOAL_ASSERT(file.format_ != RecordFormat::json);
  Row row{};
  return reader.next(row) ? file.split(row) : std::vector<std::string>();
}

RecordFile::RecordFile(const std::string& path, const RecordOptions& options)
    : RecordFile(MappedFile::open(path)) {
  Reader reader(*this);
  is_array_ = reader.is_array();
  is_plain_ = reader.is_plain();
  std::vector<std::string> names = options.columns;
  Row row{};
  if (format_ != RecordFormat::json && names.empty()) {
    if (!reader.next(row))
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("{} is empty: it has no line that names the fields", path),
                  "its first line must name the columns, as: sentence, label");
    names = split(row);
  }
  check_names(names, path);
  columns_ = std::make_shared<const std::vector<std::string>>(std::move(names));
  Union fields;
  while (reader.next(row)) {
    progress::made_of(row.end - row.begin);
    if (skipped_ > 0) {
      if (is_bad(row, options.needed, fields))
        ++skipped_;
      else
        rows_.push_back(row);
      continue;
    }
    try {
      const Record record = read(row);
      for (const std::string& name : options.needed) record.check(name);
      rows_.push_back(row);
      if (format_ == RecordFormat::json)
        for (const std::string& name : record.names()) fields.add(name);
    } catch (const Error& error) {
      if (options.bad == BadRecords::stop) throw;
      if (skipped_++ == 0) first_skipped_ = error.message();
    }
  }
  if (format_ == RecordFormat::json && columns_->empty())
    columns_ = std::make_shared<const std::vector<std::string>>(fields.names());
}

void RecordFile::need_rows() const {
  if (!rows_.empty() || format_ != RecordFormat::json) return;
  if (skipped_ > 0)
    throw_error(ErrorCode::corrupt_data, "{}: no row that can be used; the first: {}", path(),
                first_skipped_);
  throw_error(ErrorCode::corrupt_data, "{} is empty: it has no record", path());
}

// Whether read() and check() would throw. Throwing would cost more than parsing the row, and only
// the first bad row's message is kept. Adds the fields of a JSON row that is not bad to `fields`.
bool RecordFile::is_bad(const Row& row, const std::vector<std::string>& needed,
                        Union& fields) const {
  const std::string_view text = text_.substr(row.begin, row.end - row.begin);
  if (first_invalid_utf8(text) >= 0) return true;
  if (format_ == RecordFormat::json) return is_bad_json(text, needed, fields);
  const auto most = 1 + std::ranges::count(text, format_ == RecordFormat::tsv ? '\t' : ',');
  if (most < std::ssize(*columns_)) return true;
  bool is_open = false;
  const std::size_t there =
      format_ == RecordFormat::tsv ? split_at_tabs(text).size() : split_csv(text, is_open).size();
  return is_open || there != columns_->size() ||
         !std::ranges::all_of(needed, [&](const std::string& name) {
           return std::ranges::find(*columns_, name) != columns_->end();
         });
}

bool RecordFile::is_bad_json(std::string_view text, const std::vector<std::string>& needed,
                             Union& fields) const {
  const auto value = json_if_valid(text);
  if (!value || (!is_plain_ && !value->is_object())) return true;
  const auto has = [&](const std::string& name) {
    return is_plain_ ? !value->is_null() && name == JsonRecords::kPlainField
                     : find_field(*value, name) != nullptr;
  };
  if (!std::ranges::all_of(needed, has)) return true;
  if (is_plain_) {
    if (!value->is_null()) fields.add(JsonRecords::kPlainField);
    return false;
  }
  for (const auto& [name, item] : value->items())
    if (!item.is_null()) fields.add(name);
  return false;
}

void RecordFile::need_column(const std::string& name, const std::string& remedy) const {
  if (std::ranges::find(*columns_, name) != columns_->end()) return;
  if (is_plain_)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{}: its records are no objects, so that none has the field '{}'",
                            path(), shortened(name)),
                "write each record as an object: [{\"sentence\": \"...\", \"label\": 0}, ...]");
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: there is no column '{}'; {}", path(), shortened(name),
                          names_there_are(name, *columns_)),
              remedy);
}

std::string RecordFile::place_of(const Row& row) const {
  return fmt::format("{}, {} {}", map_->path(), is_array_ ? "record" : "line", row.number);
}

// The fields of a TSV or CSV row.
std::vector<std::string> RecordFile::split(const Row& row) const {
  const std::string_view text = text_.substr(row.begin, row.end - row.begin);
  check_text(text, place_of(row), "line");
  if (format_ == RecordFormat::tsv) return split_at_tabs(text);
  bool is_open = false;
  std::vector<std::string> fields = split_csv(text, is_open);
  if (is_open)
    throw_error(ErrorCode::corrupt_data, "{}: a quotation that the rest of the file does not end",
                place_of(row));
  return fields;
}

Record RecordFile::read(const Row& row) const {
  std::string place = place_of(row);
  if (format_ == RecordFormat::json)
    return json_record(text_.substr(row.begin, row.end - row.begin), std::move(place),
                       is_array_ ? "record" : "line", is_plain_);
  std::vector<std::string> texts = split(row);
  if (texts.size() != columns_->size())
    throw_error(ErrorCode::corrupt_data, "{}: {} fields where there are {} columns", place,
                texts.size(), columns_->size());
  return {std::move(place), columns_, std::move(texts)};
}

Record RecordFile::get(std::int64_t row) const {
  if (row < 0 || row >= size())
    throw_error(ErrorCode::invalid_argument, "row {} of {} in {}", row, size(), map_->path());
  return read(rows_[static_cast<std::size_t>(row)]);
}

}  // namespace shoal
