#include "shoal/train/data/records.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

RecordFormat format_of(const std::string& path) {
  const std::string ending = std::filesystem::path(path).extension();
  if (ending == ".tsv" || ending == ".txt") return RecordFormat::tsv;
  if (ending == ".csv") return RecordFormat::csv;
  if (ending == ".jsonl" || ending == ".json") return RecordFormat::json_lines;
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: rows of an unknown format", path),
              "name the file .tsv, .csv or .jsonl");
}

std::string scalar_text(const nlohmann::json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Record::Field json_field(const std::string& name, const nlohmann::json& value) {
  if (!value.is_array()) return {name, scalar_text(value), {}, false};
  Record::Field field{name, "", {}, true};
  for (const nlohmann::json& item : value) field.list.push_back(scalar_text(item));
  return field;
}

// Before anything reads it: parsers would speak of their own troubles.
void check_text(std::string_view text, const std::string& place) {
  const std::int64_t at = first_invalid_utf8(text);
  if (at < 0) return;
  throw Error(
      ErrorCode::corrupt_data,
      fmt::format(
          "{}: byte 0x{:02x} at offset {} of the line is not UTF-8", place,
          static_cast<unsigned>(static_cast<unsigned char>(text[static_cast<std::size_t>(at)])),
          at),
      "convert the file: iconv -f ITS-ENCODING -t UTF-8 (UTF-16 or ISO-8859-1, most often)");
}

}  // namespace

const Record::Field* Record::find(std::string_view name) const {
  const auto found = std::find_if(fields_.begin(), fields_.end(),
                                  [&](const Field& field) { return field.name == name; });
  return found == fields_.end() ? nullptr : &*found;
}

const Record::Field& Record::need(std::string_view name) const {
  if (const Field* field = find(name)) return *field;
  std::vector<std::string> names;
  for (const Field& field : fields_) names.push_back(field.name);
  throw Error(ErrorCode::not_found, fmt::format("{}: there is no field '{}'", place_, name),
              names_there_are(name, names));
}

void Record::wrong(std::string_view name, std::string_view text, const char* wanted) const {
  throw_error(ErrorCode::corrupt_data, "{}: '{}' is '{}', not {}", place_, name, text, wanted);
}

const std::string& Record::text(std::string_view name) const {
  const Field& field = need(name);
  if (field.is_list) wrong(name, "a list", "a text");
  return field.text;
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
  const Field& field = need(name);
  if (!field.is_list) wrong(name, field.text, "a list");
  return field.list;
}

RecordFile::RecordFile(std::shared_ptr<MappedFile> map)
    : map_(std::move(map)),
      text_(reinterpret_cast<const char*>(map_->bytes().data()), map_->bytes().size()),
      format_(format_of(map_->path())) {}

std::size_t RecordFile::text_begin() const {
  return text_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
}

std::vector<std::string> RecordFile::first_fields(const std::string& path) {
  const RecordFile file(MappedFile::open(path));
  std::size_t at = file.text_begin();
  std::int64_t line = 1;
  Row row{};
  if (!file.next_row(at, line, row)) return {};
  if (file.format_ != RecordFormat::json_lines) return file.split(row);
  std::vector<std::string> names;
  for (const Record::Field& field : file.fields_of(row)) names.push_back(field.name);
  return names;
}

RecordFile::RecordFile(const std::string& path, const RecordOptions& options)
    : RecordFile(MappedFile::open(path)) {
  columns_ = options.columns;
  std::size_t at = text_begin();
  std::int64_t line = 1;
  Row row{};
  if (format_ != RecordFormat::json_lines && columns_.empty()) {
    if (!next_row(at, line, row))
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("{} is empty: it has no line that names the fields", path),
                  "its first line must name the columns, as: sentence, label");
    columns_ = split(row);
  }
  for (auto name = columns_.begin(); name != columns_.end(); ++name)
    if (!name->empty() && std::find(columns_.begin(), name, *name) != name)
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("{}: two columns are called '{}'", path, *name),
                  "give one of them another name");
  while (next_row(at, line, row)) {
    try {
      const Record record(place_of(row), fields_of(row));
      for (const std::string& name : options.needed) record.check(name);
      rows_.push_back(row);
    } catch (const Error& error) {
      if (options.bad == BadRecords::stop) throw;
      if (skipped_++ == 0) first_skipped_ = error.message();
    }
  }
  if (format_ == RecordFormat::json_lines && !rows_.empty() && columns_.empty())
    for (const Record::Field& field : fields_of(rows_.front())) columns_.push_back(field.name);
}

// The next row that is not blank. In a CSV, a line's end between quotation marks is text.
bool RecordFile::next_row(std::size_t& at, std::int64_t& line, Row& row) const {
  while (at < text_.size()) {
    row = {at, at, line};
    bool quoted = false;
    for (; at < text_.size(); ++at) {
      if (format_ == RecordFormat::csv && text_[at] == '"') quoted = !quoted;
      if (text_[at] != '\n') continue;
      ++line;
      if (!quoted) break;
    }
    row.end = at++;
    if (row.end > row.begin && text_[row.end - 1] == '\r') --row.end;
    const std::string_view whole = text_.substr(row.begin, row.end - row.begin);
    // A TSV's tabs are empty fields.
    const char* blank = format_ == RecordFormat::tsv ? "" : " \t";
    if (whole.find_first_not_of(blank) != std::string_view::npos) return true;
  }
  return false;
}

std::string RecordFile::place_of(const Row& row) const {
  return fmt::format("{}, line {}", map_->path(), row.line);
}

std::vector<std::string> RecordFile::split(const Row& row) const {
  const std::string_view text = text_.substr(row.begin, row.end - row.begin);
  check_text(text, place_of(row));
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (format_ == RecordFormat::tsv) {
      if (c == '\t')
        fields.emplace_back();
      else
        fields.back() += c;
    } else if (c == '"') {
      if (quoted && i + 1 < text.size() && text[i + 1] == '"')
        fields.back() += text[++i];  // two stand for one
      else
        quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  if (quoted)
    throw_error(ErrorCode::corrupt_data, "{}: a quotation that the rest of the file does not end",
                place_of(row));
  return fields;
}

std::vector<Record::Field> RecordFile::fields_of(const Row& row) const {
  std::vector<Record::Field> fields;
  if (format_ == RecordFormat::json_lines) {
    const std::string place = place_of(row);
    const std::string_view text = text_.substr(row.begin, row.end - row.begin);
    check_text(text, place);
    const nlohmann::json value = parse_json(text, place);
    if (!value.is_object())
      throw_error(ErrorCode::corrupt_data, "{}: {} where an object with fields is wanted", place,
                  value.type_name());
    for (const auto& [name, item] : value.items())
      if (!item.is_null()) fields.push_back(json_field(name, item));
    return fields;
  }
  std::vector<std::string> texts = split(row);
  if (texts.size() != columns_.size())
    throw_error(ErrorCode::corrupt_data, "{}: {} fields where there are {} columns", place_of(row),
                texts.size(), columns_.size());
  for (std::size_t i = 0; i < texts.size(); ++i)
    fields.push_back({columns_[i], std::move(texts[i]), {}, false});
  return fields;
}

Record RecordFile::get(std::int64_t row) const {
  if (row < 0 || row >= size())
    throw_error(ErrorCode::invalid_argument, "row {} of {} in {}", row, size(), map_->path());
  const Row& at = rows_[static_cast<std::size_t>(row)];
  return {place_of(at), fields_of(at)};
}

}  // namespace shoal
