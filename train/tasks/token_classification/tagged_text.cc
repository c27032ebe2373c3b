#include "shoal/train/tasks/token_classification/tagged_text.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string_view>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/base/white_space.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/text_encoding.h"
#include "shoal/runtime/io/text_lines.h"
#include "shoal/train/data/json_records.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

// The columns of a CoNLL line, separated by tabs if it has any, else by spaces.
std::vector<std::string_view> columns_of(std::string_view line) {
  const bool tabs = line.find('\t') != line.npos;
  std::vector<std::string_view> columns;
  for (std::size_t at = 0; at <= line.size();) {
    const std::size_t end = std::min(line.find(tabs ? '\t' : ' ', at), line.size());
    if (tabs || end > at) columns.push_back(line.substr(at, end - at));
    at = end + 1;
  }
  return columns;
}

// True if the line ends a sentence. The line must have no trailing blanks.
bool ends_sentence(std::string_view line) { return line.empty() || line.starts_with("-DOCSTART-"); }

// Python's str.rstrip(), which readers of CoNLL files apply to a line or its tag.
std::string_view without_blanks_behind(std::string_view text) {
  return without_spaces_behind(text, is_python_space);
}

std::string_view text_of(const MappedFile& map) {
  const auto bytes = map.bytes();
  std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  refuse_unmarked_utf16(all, map.path());
  if (all.starts_with("\xEF\xBB\xBF")) all.remove_prefix(3);
  return all;
}

// Maximum number of sentences in the text.
std::size_t sentences_in(std::string_view all) {
  std::size_t count = 1;
  std::string_view line;
  bool within = false;
  for (TextLines lines(all); lines.next(line);) {
    progress::made_of(line.size());
    const bool ends = ends_sentence(without_blanks_behind(line));
    count += within && ends ? 1 : 0;
    within = !ends;
  }
  return count;
}

class ColumnReader {
 public:
  ColumnReader(TaggedText& text, const TaggedTextOptions& options, std::string path)
      : text_(text), options_(options), path_(std::move(path)) {}

  void read(std::string_view all) {
    // A growing vector would need more than twice the memory.
    text_.sentences.reserve(sentences_in(all));
    std::int64_t number = 1;
    std::string_view line;
    for (TextLines lines(all); lines.next(line); ++number) {
      progress::made_of(line.size());
      line = without_blanks_behind(line);
      if (ends_sentence(line))
        finish();
      else
        add(line, number);
    }
    finish();
  }

 private:
  void add(std::string_view line, std::int64_t number) {
    if (!wrong_.empty()) return;
    if (sentence_.words.empty()) sentence_.place = place_of(number);
    const auto columns = columns_of(line);
    if (const std::int64_t at = first_invalid_utf8(line); at >= 0)
      return refuse([&] {
        return fmt::format("{}: not UTF-8 at byte {} of the line", place_of(number), at);
      });
    if (columns[0].empty() || (options_.has_tags && (columns.size() < 2 || columns.back().empty())))
      return refuse([&] {
        return fmt::format("{}: '{}' is not a word and its tag", place_of(number), shortened(line));
      });
    sentence_.words.emplace_back(columns[0]);
    if (options_.has_tags) sentence_.tags.emplace_back(columns.back());
  }

  std::string place_of(std::int64_t number) const {
    return fmt::format("{}, line {}", path_, number);
  }

  // Only the first bad sentence is described.
  template <typename Message>
  void refuse(const Message& message) {
    if (options_.bad == BadRecords::stop) throw Error(ErrorCode::corrupt_data, message());
    wrong_ = text_.skipped == 0 ? message() : "bad";
  }

  void finish() {
    if (!wrong_.empty()) {
      if (text_.skipped++ == 0) text_.first_skipped = wrong_;
    } else if (!sentence_.words.empty()) {
      text_.sentences.push_back(std::move(sentence_));
    }
    sentence_ = {};
    wrong_.clear();
  }

  TaggedText& text_;
  const TaggedTextOptions& options_;
  std::string path_;
  TaggedSentence sentence_;
  std::string wrong_;  // problem in the sentence being read
};

std::vector<std::string> split_at_spaces(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; (at = text.find_first_not_of(' ', at)) != text.npos;) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

// `type` on entry: the type of all earlier tags; on return: that of all tags so far. Several types
// are refused, because run_ner cannot sort them.
TaggedSentence sentence_of(const Record& record, bool lists, const TaggedTextOptions& options,
                           Record::Item& type) {
  const auto split = [&](const std::string& name) {
    return split_at_spaces(without_blanks_behind(record.text(name)));
  };
  const std::string &words = options.words_field, &tags = options.tags_field;
  TaggedSentence sentence{lists ? record.texts(words) : split(words), {}, record.place()};
  if (!options.has_tags) return sentence;
  Record::Item own = Record::Item::none;
  sentence.tags = lists ? record.values(tags, &own) : split(tags);
  if (sentence.words.size() != sentence.tags.size())
    throw_error(ErrorCode::corrupt_data, "{}: {} words but {} tags", record.place(),
                sentence.words.size(), sentence.tags.size());
  for (std::string& tag : sentence.tags) {
    tag.resize(without_blanks_behind(tag).size());
    if (tag.empty())
      throw_error(ErrorCode::corrupt_data, "{}: '{}' holds an empty tag", record.place(),
                  shortened(tags));
  }
  if (own == Record::Item::none) return sentence;
  if (type != Record::Item::none && own != type)
    throw_error(ErrorCode::corrupt_data,
                "{}: '{}' holds {}, which is of another type than the tags before it",
                record.place(), shortened(tags), shortened(sentence.tags[0]));
  type = own;
  return sentence;
}

void read_rows(const RecordFile& rows, const TaggedTextOptions& options, TaggedText& text) {
  text.skipped = rows.skipped();
  text.first_skipped = rows.first_skipped();
  const bool lists = rows.format() == RecordFormat::json;
  text.sentences.reserve(static_cast<std::size_t>(rows.size()));
  Record::Item type = Record::Item::none;
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    progress::made_of();
    try {
      const Record record = rows.get(i);
      // Only the first bad sentence gets a message, because an exception costs more than a short
      // row.
      if (text.skipped > 0 && !record.has(options.words_field))
        ++text.skipped;
      else
        text.sentences.push_back(sentence_of(record, lists, options, type));
    } catch (const Error& error) {
      if (options.bad == BadRecords::stop) throw;
      if (text.skipped++ == 0) text.first_skipped = error.message();
    }
  }
}

void need_sentences(const TaggedText& text, const std::string& path) {
  if (text.sentences.empty())
    throw_error(ErrorCode::corrupt_data, "{}: no sentence that can be used{}{}", path,
                text.skipped > 0 ? "; the first: " : "", text.first_skipped);
}

}  // namespace

TaggedText read_tagged_rows(const RecordFile& rows, const TaggedTextOptions& options) {
  rows.need_rows();
  if (rows.is_plain()) rows.need_column(options.words_field, "");
  TaggedText text;
  read_rows(rows, options, text);
  need_sentences(text, rows.path());
  return text;
}

TaggedText read_tagged_text(const std::string& path, const TaggedTextOptions& options) {
  if (is_json_path(path) || path.ends_with(".csv"))
    return read_tagged_rows(RecordFile(path, {.bad = options.bad}), options);
  TaggedText text;
  ColumnReader(text, options, path).read(text_of(*MappedFile::open(path)));
  need_sentences(text, path);
  return text;
}

std::vector<std::string> first_word_columns(const std::string& path) {
  const auto map = MappedFile::open(path);
  const std::string_view all = text_of(*map);
  std::string_view line;
  for (TextLines lines(all); lines.next(line);) {
    line = without_blanks_behind(line);
    if (ends_sentence(line)) continue;
    const auto columns = columns_of(line);
    return {columns.begin(), columns.end()};
  }
  return {};
}

LabelSet discover_tags(const TaggedText& text) {
  std::set<std::string> tags;
  for (const TaggedSentence& sentence : text.sentences) {
    progress::made_of();
    tags.insert(sentence.tags.begin(), sentence.tags.end());
  }
  return LabelSet::discover({tags.begin(), tags.end()});
}

}  // namespace shoal
