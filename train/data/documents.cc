#include "shoal/train/data/documents.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n") == line.npos; }

}  // namespace

DocumentSource::DocumentSource(const std::string& path, const PrepareOptions& options)
    : source_(open_whole(path, options.sources)),
      field_(options.text_field),
      document_(options.document) {
  text_ = {reinterpret_cast<const char*>(source_.bytes.data()), source_.bytes.size()};
  is_json_lines_ = path.ends_with(".jsonl") || path.ends_with(".json");
  if (first_invalid_utf8(text_) >= 0) {
    if (!options.repair_utf8)
      check_utf8(text_, path, "let `shoal data prepare --repair-utf8` replace such bytes");
    repair_ = true;
  }
}

void DocumentSource::for_each(
    const std::function<void(std::string_view, std::int64_t)>& document) const {
  if (document_ == PrepareOptions::Document::file && !is_json_lines_) {
    if (!text_.empty()) document(text_, 1);
    return;
  }
  const bool paragraphs = document_ == PrepareOptions::Document::paragraph && !is_json_lines_;
  std::size_t begin = 0;     // of the document
  bool has_text = false;     // paragraph: a line that is not blank was met,
  bool after_blank = false;  // and a blank one after it: the next text starts another
  std::int64_t line_number = 0, first_line = 1;
  for (std::size_t at = 0; at < text_.size();) {
    const std::size_t end = std::min(text_.find('\n', at), text_.size() - 1) + 1;
    const std::string_view line = text_.substr(at, end - at);
    ++line_number;
    if (!paragraphs) {
      if (!is_json_lines_ || !is_blank(line)) document(line, line_number);
    } else if (is_blank(line)) {
      after_blank = has_text;
    } else {
      if (after_blank) {
        document(text_.substr(begin, at - begin), first_line);
        begin = at;
        first_line = line_number;
      }
      has_text = true;
      after_blank = false;
    }
    at = end;
  }
  if (paragraphs && has_text) document(text_.substr(begin), first_line);
}

std::string DocumentSource::text_of(std::string_view raw, std::int64_t line) const {
  std::string text = repair_ ? repair_utf8(raw) : std::string(raw);
  if (!is_json_lines_) return text;
  const std::string place = fmt::format("{}, line {}", source_.name, line);
  const nlohmann::json record = parse_json(text, place);
  if (!record.is_object() || !record.contains(field_) || !record[field_].is_string())
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{}: not an object with the string '{}'", place, field_),
                "name the right text field");
  return record[field_].get<std::string>();
}

}  // namespace shoal
