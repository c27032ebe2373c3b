#include "shoal/train/data/json_records.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view without_mark(std::string_view text) {
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  return text;
}

std::string_view without_blanks_behind(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

// Position after the string that begins at `at`, or the text's end.
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
    : text_(without_mark(text)), path_(std::move(path)), lines_(text_), tries_left_(text_.size()) {
  pass_blanks();
  if (at_ >= text_.size() || text_[at_] != '[') return;
  if (!path_.ends_with(".jsonl")) {
    is_array_ = true;
    ++at_;
    pass_blanks();
    is_plain_ = at_ < text_.size() && text_[at_] != '{' && text_[at_] != ']';
  } else if (without_blanks_behind(text_).ends_with(']')) {
    throw Error(
        ErrorCode::corrupt_data,
        fmt::format("{} is one JSON array, where a .jsonl has a record on each line", path_),
        "name it .json, or write its records one a line: jq -c '.[]'");
  }
}

bool JsonRecords::next(Raw& record) {
  if (is_array_) return next_element(record);
  while (!rest_.empty() || lines_.next(record.text)) {
    if (rest_.empty())
      ++number_;
    else
      record.text = std::exchange(rest_, {});
    record.number = number_;
    if (record.text.find_first_not_of(kBlanks) == std::string_view::npos) continue;
    take_objects(record);
    return true;
  }
  return false;
}

// A line that begins with "{" but does not end with "}", or that contains "}{", is not exactly one
// object. If an object begins there and ends elsewhere, it becomes the record, and the next record
// begins after it. Otherwise the line is malformed, and parsing it will report that.
void JsonRecords::take_objects(Raw& record) {
  const std::string_view line = without_blanks_behind(record.text);
  const std::size_t first = line.find_first_not_of(kBlanks);
  if (line[first] != '{') return;
  bool one = line.ends_with('}');
  for (std::size_t at = line.find('}'); one && at != line.npos; at = line.find('}', at + 1)) {
    const std::size_t next = line.find_first_not_of(kBlanks, at + 1);
    one = next == line.npos || line[next] != '{';
  }
  if (one) return;
  const auto begin = static_cast<std::size_t>(line.data() - text_.data()) + first;
  const auto end = object_end(begin);
  if (!end) return;
  const std::size_t line_end = begin - first + line.size();
  record.text = text_.substr(begin, *end - begin);
  if (*end <= line_end) {
    rest_ = text_.substr(*end, line_end - *end);
    return;
  }
  std::string_view line_of_it;
  for (TextLines lines(record.text); lines.next(line_of_it);) ++number_;
  --number_;
  lines_.skip_to(*end);
  lines_.next(rest_);
}

// Position after the object that begins at `at`. Absent if the text cannot be an object: then the
// line was truncated, and the following lines are separate records.
std::optional<std::size_t> JsonRecords::object_end(std::size_t at) {
  constexpr std::size_t kDeepest = 1'000;
  std::string open;    // unclosed brackets
  char before = '\0';  // last non-blank character
  const auto fail = [&](std::size_t behind) {
    tries_left_ -= std::min(tries_left_, behind - at);
    return std::nullopt;
  };
  for (std::size_t i = at; i < text_.size(); ++i) {
    if (i - at > tries_left_) return fail(i);
    const char c = text_[i];
    if (kBlanks.find(c) != kBlanks.npos) continue;
    if (c == '"') {
      const std::size_t end = string_end(text_, i);
      if (text_.substr(i, end - i).find_first_of("\r\n") != std::string_view::npos)
        return fail(end);
      i = end - 1;
    } else if (c == '{' || c == '[') {
      const bool fits =
          open.empty() || before == ':' || (open.back() == '[' && (before == '[' || before == ','));
      if (!fits || open.size() == kDeepest) return fail(i);
      open += c;
    } else if (c == '}' || c == ']') {
      if (open.back() != (c == '}' ? '{' : '[')) return fail(i);
      open.pop_back();
      if (open.empty()) return i + 1;
    }
    before = c;
  }
  return fail(text_.size());
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

// Position of the comma or bracket after the element that begins at `at`.
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
              "a .json holds [{...}, {...}], or records one after the other");
}

}  // namespace shoal
