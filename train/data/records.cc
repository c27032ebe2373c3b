#include "shoal/train/data/records.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <unordered_set>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/text_lines.h"
#include "shoal/train/data/csv.h"
#include "shoal/train/data/json_records.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

RecordFormat format_of(const std::string& path) {
  const std::string ending = std::filesystem::path(path).extension();
  if (ending == ".tsv" || ending == ".txt") return RecordFormat::tsv;
  if (ending == ".csv") return RecordFormat::csv;
  if (is_json_path(path)) return RecordFormat::json;
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: rows of an unknown format", path),
              "name the file .tsv, .csv or .jsonl");
}

std::string scalar_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
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
  Record::Lists lists;
  for (const auto& [name, item] : value.items()) {
    if (item.is_null()) continue;
    if (item.is_array()) {
      std::vector<std::string>& list = lists[names.size()];
      list.reserve(item.size());
      for (const nlohmann::json& one : item) list.push_back(scalar_text(one));
    }
    names.push_back(name);
    texts.push_back(item.is_array() ? std::string() : scalar_text(item));
  }
  return {std::move(place), std::make_shared<const std::vector<std::string>>(std::move(names)),
          std::move(texts), std::move(lists)};
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

const std::string& Record::text(std::string_view name) const {
  const std::size_t field = need(name);
  if (lists_.contains(field)) wrong(name, "a list", "a text");
  return texts_[field];
}

const std::string* Record::find_text(std::string_view name) const {
  const std::size_t field = find(name);
  return field == names_->size() || lists_.contains(field) ? nullptr : &texts_[field];
}

double Record::number(std::string_view name) const {
  const std::string& text = this->text(name);
  double value = 0;
  const char* end = text.data() + text.size();
  if (const auto [at, error] = std::from_chars(text.data(), end, value);
      error != std::errc() || at != end)
    wrong(name, text, "a number");
  return value;
}

std::int64_t Record::integer(std::string_view name) const {
  const std::string& text = this->text(name);
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  if (const auto [at, error] = std::from_chars(text.data(), end, value);
      error != std::errc() || at != end)
    wrong(name, text, "a whole number");
  return value;
}

const std::vector<std::string>& Record::list(std::string_view name) const {
  const std::size_t field = need(name);
  const auto list = lists_.find(field);
  if (list == lists_.end()) wrong(name, texts_[field], "a list");
  return list->second;
}

// Finds the rows of a file in one pass.
class RecordFile::Reader {
 public:
  explicit Reader(const RecordFile& file)
      : text_(file.text_),
        is_csv_(file.format_ == RecordFormat::csv),
        at_(text_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0),
        lines_(text_, at_) {
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
  file.is_array_ = reader.is_array();
  file.is_plain_ = reader.is_plain();
  Row row{};
  if (!reader.next(row)) return {};
  return file.format_ == RecordFormat::json ? file.read(row).names() : file.split(row);
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
  while (reader.next(row)) {
    progress::made_of(row.end - row.begin);
    if (skipped_ > 0) {
      if (is_bad(row, options.needed))
        ++skipped_;
      else
        rows_.push_back(row);
      continue;
    }
    try {
      const Record record = read(row);
      for (const std::string& name : options.needed) record.check(name);
      rows_.push_back(row);
    } catch (const Error& error) {
      if (options.bad == BadRecords::stop) throw;
      if (skipped_++ == 0) first_skipped_ = error.message();
    }
  }
  if (format_ == RecordFormat::json && !rows_.empty() && columns_->empty())
    columns_ = std::make_shared<const std::vector<std::string>>(read(rows_.front()).names());
}

// Whether read() and check() would throw. Throwing would cost more than parsing the row, and only
// the first bad row's message is kept.
bool RecordFile::is_bad(const Row& row, const std::vector<std::string>& needed) const {
  const std::string_view text = text_.substr(row.begin, row.end - row.begin);
  if (first_invalid_utf8(text) >= 0) return true;
  const auto lacks = [&](const auto& has) { return !std::ranges::all_of(needed, has); };
  if (format_ != RecordFormat::json) {
    const auto most = 1 + std::ranges::count(text, format_ == RecordFormat::tsv ? '\t' : ',');
    if (most < std::ssize(*columns_)) return true;
    bool is_open = false;
    const std::size_t fields =
        format_ == RecordFormat::tsv ? split_at_tabs(text).size() : split_csv(text, is_open).size();
    return is_open || fields != columns_->size() || lacks([&](const std::string& name) {
             return std::ranges::find(*columns_, name) != columns_->end();
           });
  }
  const auto value = json_if_valid(text);
  if (!value) return true;
  if (is_plain_)
    return value->is_null()
               ? !needed.empty()
               : lacks([](const auto& name) { return name == JsonRecords::kPlainField; });
  return !value->is_object() ||
         lacks([&](const std::string& name) { return find_field(*value, name) != nullptr; });
}

std::string RecordFile::column_list() const {
  constexpr std::size_t kShown = 12;
  const std::vector<std::string>& names = *columns_;
  const std::size_t shown = std::min(kShown, names.size());
  std::string list = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  if (shown < names.size()) list += fmt::format(" and {} more", names.size() - shown);
  return list;
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
