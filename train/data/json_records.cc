#include "shoal/train/data/json_records.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kBlanks = " \t\r\n";

std::string_view without_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

// The place behind the string that begins at `at`, or the text's end.
std::size_t string_end(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return std::min(at + 1, text.size());
}

}  // namespace

bool is_json_path(std::string_view path) {
  return path.ends_with(".jsonl") || path.ends_with(".json");
}

JsonRecords::JsonRecords(std::string_view text, std::string path)
    : text_(without_mark(text)), path_(std::move(path)), lines_(text_) {
  pass_blanks();
  if (at_ >= text_.size() || text_[at_] != '[') return;
  if (!path_.ends_with(".jsonl")) {
    is_array_ = true;
    ++at_;
  } else if (without_blanks_behind(text_).ends_with(']')) {
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("{} is one JSON array, where a .jsonl has a record on each line", path_),
        "name it .json, or write its records one a line: jq -c '.[]'");
  }
}

bool JsonRecords::next(Raw& record) {
  if (is_array_) return next_element(record);
  while (lines_.next(record.text)) {
    record.number = ++number_;
    if (record.text.find_first_not_of(kBlanks) != std::string_view::npos) return true;
  }
  return false;
}

void JsonRecords::pass_blanks() {
  at_ = std::min(text_.find_first_not_of(kBlanks, at_), text_.size());
}

bool JsonRecords::next_element(Raw& record) {
  if (at_end_) return false;
  pass_blanks();
  const bool is_first = number_ == 0;
  if (is_first && at_ < text_.size() && text_[at_] == ']') {
    ++at_;
    at_end_ = true;
  } else {
    const std::size_t end = element_end(at_);
    record = {without_blanks_behind(text_.substr(at_, end - at_)), ++number_};
    if (record.text.empty()) broken(at_, "a record is missing in front of it");
    at_ = end + 1;
    at_end_ = text_[end] == ']';
  }
  if (!at_end_) return true;
  const bool has_record = number_ > 0;
  pass_blanks();
  if (at_ < text_.size()) broken(at_, "the array of records has ended, and more follows");
  return has_record;
}

// The comma or bracket behind the element that begins at `at`.
std::size_t JsonRecords::element_end(std::size_t at) const {
  std::int64_t depth = 0;
  while (at < text_.size()) {
    const char c = text_[at];
    if (c == '"') {
      at = string_end(text_, at);
      continue;
    }
    if (depth == 0 && (c == ',' || c == ']')) return at;
    if (c == '{' || c == '[') ++depth;
    if (depth > 0 && (c == '}' || c == ']')) --depth;
    ++at;
  }
  broken(text_.size(), "the file ends within its array of records");
}

void JsonRecords::broken(std::size_t at, const char* what) const {
  std::int64_t line = 0;
  std::string_view unused;
  for (TextLines lines(text_.substr(0, at + 1)); lines.next(unused);) ++line;
  throw Error(ErrorCode::corrupt_data, fmt::format("{}, line {}: {}", path_, line, what),
              "a .json holds [{...}, {...}], or a record a line");
}

}  // namespace shoal
