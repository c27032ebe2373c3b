#include "shoal/train/data/documents.h"

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/text_encoding.h"
#include "shoal/runtime/io/text_lines.h"
#include "shoal/train/data/json_records.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t") == line.npos; }

// Faults in all pages of a mapped file, which may take long.
void touch(std::string_view text) {
  constexpr std::size_t kPage = 4'096;
  volatile char seen = 0;
  for (std::size_t at = 0; at < text.size(); at += kPage) {
    seen = text[at];
    progress::made_of(kPage);
  }
  static_cast<void>(seen);
}

}  // namespace

DocumentSource::DocumentSource(const std::string& path, const PrepareOptions& options)
    : source_(open_whole(path, options.sources)),
      field_(options.text_field),
      document_(options.document) {
  text_ = {reinterpret_cast<const char*>(source_.bytes.data()), source_.bytes.size()};
  touch(text_);
  refuse_unmarked_utf16(text_, source_.name);
  is_json_ = is_json_path(path);
  if (is_json_) {
    const JsonRecords records(text_, source_.name);
    is_array_ = records.is_array();
    is_plain_ = records.is_plain();
  }
  has_carriage_returns_ = !is_json_ && text_.find('\r') != text_.npos;
  if (first_invalid_utf8(text_) >= 0) {
    if (!options.repair_utf8)
      check_utf8(text_, path, "let `shoal data prepare --repair-utf8` replace such bytes");
    repair_ = true;
  }
}

void DocumentSource::for_each(
    const std::function<void(std::string_view, std::int64_t)>& document) const {
  if (is_json_) {
    JsonRecords records(text_, source_.name);
    for (JsonRecords::Raw record; records.next(record);) document(record.text, record.number);
  } else if (document_ == PrepareOptions::Document::file) {
    if (!text_.empty()) document(text_, 1);
  } else if (document_ == PrepareOptions::Document::paragraph) {
    for_each_paragraph(document);
  } else {
    std::int64_t number = 0;
    std::string_view unused;
    TextLines lines(text_);
    for (std::size_t begin = 0; lines.next(unused); begin = lines.position())
      document(text_.substr(begin, lines.position() - begin), ++number);
  }
}

void DocumentSource::for_each_paragraph(
    const std::function<void(std::string_view, std::int64_t)>& document) const {
  std::size_t begin = 0;     // start of the paragraph
  bool has_text = false;     // a non-blank line was found
  bool after_blank = false;  // a blank line followed it; the next text starts a new paragraph
  std::int64_t number = 0, first_line = 1;
  std::string_view line;
  TextLines lines(text_);
  for (std::size_t at = 0; lines.next(line); at = lines.position()) {
    ++number;
    if (is_blank(line)) {
      after_blank = has_text;
      continue;
    }
    if (after_blank) {
      document(text_.substr(begin, at - begin), first_line);
      begin = at;
      first_line = number;
    }
    has_text = true;
    after_blank = false;
  }
  if (has_text) document(text_.substr(begin), first_line);
}

std::string DocumentSource::text_of(std::string_view raw, std::int64_t number) const {
  std::string text = repair_ ? repair_utf8(raw) : std::string(raw);
  if (!is_json_) return has_carriage_returns_ ? with_newlines(text) : text;
  const std::string place =
      fmt::format("{}, {} {}", source_.name, is_array_ ? "record" : "line", number);
  const nlohmann::json record = parse_json(text, place);
  if (is_plain_ && field_ == JsonRecords::kPlainField && record.is_string())
    return record.get<std::string>();
  if (!record.is_object() || !record.contains(field_) || !record[field_].is_string())
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{}: not an object with the string '{}'", place, shortened(field_)),
                "name the right text field");
  return record[field_].get<std::string>();
}

}  // namespace shoal
