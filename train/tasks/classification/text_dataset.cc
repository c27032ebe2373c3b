#include "shoal/train/tasks/classification/text_dataset.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/train/data/model_input.h"

namespace shoal {
namespace {

constexpr float kNoScore = std::numeric_limits<float>::quiet_NaN();

bool contains(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_number(std::string_view text) {
  text = bare_number(text);
  double value = 0;
  const auto [at, error] = std::from_chars(text.begin(), text.end(), value);
  return error == std::errc() && at == text.end();
}

// The class of a row's label. In a TSV or CSV, "01" is class "1".
std::optional<std::int32_t> class_of(const std::string& label, const LabelSet& labels,
                                     RecordFormat format) {
  if (auto found = labels.find(label); found || format == RecordFormat::json) return found;
  const auto number = whole_number_text(label);
  return number ? labels.find(*number) : std::nullopt;
}

// Throws for rows without any label. Names the first row with something other than a label.
[[noreturn]] void refuse_labels(const RecordFile& rows, const std::string& column) {
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const Record record = rows.get(i);
    if (record.has(column) && record.value(column).empty())  // value() refuses lists and objects
      throw_error(ErrorCode::corrupt_data, "{}: the label in '{}' is empty, and no row has one",
                  record.place(), shortened(column));
  }
  if (rows.size() == 0)
    throw_error(ErrorCode::corrupt_data, "{}: there is no row{}{}", rows.path(),
                rows.skipped() > 0 ? " that can be used; the first: " : "", rows.first_skipped());
  throw_error(ErrorCode::corrupt_data, "{}: no row has a label in '{}'", rows.path(),
              shortened(column));
}

}  // namespace

TextColumns default_columns(const RecordFile& rows) {
  rows.need_rows();
  const std::vector<std::string>& names = rows.columns();
  TextColumns columns;
  if (contains(names, "label")) columns.label = "label";
  if (contains(names, "sentence1") && contains(names, "sentence2")) {
    columns.first = "sentence1";
    columns.second = "sentence2";
    return columns;
  }
  std::vector<std::string> texts;
  for (const std::string& name : names)
    if (name != "label") texts.push_back(name);
  SHOAL_CHECK(!texts.empty(), "{}: no column but 'label'", rows.path());
  if (texts.size() > 1 && rows.format() == RecordFormat::json)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: '{}' and {} more fields could be the text", rows.path(),
                            shortened(texts[0]), texts.size() - 1),
                "name the columns, or call them sentence1 and sentence2");
  columns.first = texts[0];
  if (texts.size() > 1) columns.second = texts[1];
  return columns;
}

LabelSet discover_labels(const RecordFile& rows, const std::string& column) {
  std::vector<std::string> texts, numbers;
  std::optional<Record::Kind> kind;
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    progress::made_of();
    const Record record = rows.get(i);
    const std::string* const label = record.find_value(column);
    if (label == nullptr || label->empty()) continue;
    if (!texts.empty() && record.kind(column) != kind)
      throw_error(ErrorCode::corrupt_data,
                  "{}: the label {} is of another type than those before it; texts and numbers are "
                  "different classes",
                  record.place(), shortened(*label));
    kind = record.kind(column);
    texts.push_back(*label);
    if (auto number = whole_number_text(texts.back())) numbers.push_back(std::move(*number));
  }
  if (texts.empty()) refuse_labels(rows, column);
  if (kind == Record::Kind::text) return LabelSet::discover_by_code_point(std::move(texts));
  if (numbers.size() == texts.size()) return LabelSet::discover(std::move(numbers));
  if (std::all_of(texts.begin(), texts.end(), is_number)) return {};
  return LabelSet::discover(std::move(texts));
}

TextClassificationDataset::TextClassificationDataset(std::shared_ptr<const RecordFile> rows,
                                                     std::shared_ptr<const Tokenizer> tokenizer,
                                                     const TextClassificationOptions& options)
    : file_(std::move(rows)), tokenizer_(std::move(tokenizer)), options_(options) {
  SHOAL_CHECK(!options_.columns.first.empty(), "{}: no column of text is named", file_->path());
  SHOAL_CHECK(
      options_.model_ids.empty() || options_.model_ids.size() == options_.labels.names().size(),
      "{} of the model's ids for {} classes", options_.model_ids.size(), options_.labels.size());
  room_for_text(tokenizer_->sequence_template(), !options_.columns.second.empty(),
                options_.max_seq_length);
  for (std::int64_t i = 0; i < file_->size(); ++i) {
    progress::made_of();
    try {
      // Only the first bad row gets a message, because an exception costs more than a short row.
      const std::optional<Row> row = read(i, skipped_ > 0);
      if (!row) {
        ++skipped_;
        continue;
      }
      rows_.push_back(*row);
    } catch (const Error& error) {
      if (options_.bad == BadRecords::stop) throw;
      if (skipped_++ == 0) first_skipped_ = error.message();
      continue;
    }
    has_labels_ =
        has_labels_ || rows_.back().label != kIgnoreLabel || !std::isnan(rows_.back().score);
  }
}

std::optional<TextClassificationDataset::Row> TextClassificationDataset::read(std::int64_t record,
                                                                              bool quiet) const {
  const Record row = file_->get(record);
  const TextColumns& columns = options_.columns;
  const auto text_of = [&](const std::string& name) {
    const std::string* text = row.find_text(name);
    return text != nullptr || quiet ? text : &row.text(name);  // text() throws
  };
  const std::string* const first = text_of(columns.first);
  const std::string* const second = columns.second.empty() ? first : text_of(columns.second);
  if (first == nullptr || second == nullptr) return std::nullopt;
  const bool pair = !columns.second.empty();
  if (first->empty() && second->empty() &&
      tokenizer_->sequence_template().special_tokens(pair) == 0) {
    if (quiet) return std::nullopt;
    throw_error(ErrorCode::corrupt_data,
                "{}: the text is empty, and this tokenizer puts no token around it", row.place());
  }
  Row result{record, kIgnoreLabel, kNoScore};
  const std::string& column = columns.label;
  if (column.empty() || (options_.may_lack_labels && !row.has(column))) return result;
  const std::string* const label = row.find_value(column);
  if (label == nullptr && quiet) return std::nullopt;
  if (label == nullptr) row.value(column);  // throws
  if (options_.may_lack_labels &&
      (label->empty() || (*label == "-1" && !options_.labels.find(*label))))
    return result;
  if (!is_regression()) {
    const auto found = class_of(*label, options_.labels, file_->format());
    if (!found && quiet) return std::nullopt;
    if (label->empty())
      throw_error(ErrorCode::corrupt_data, "{}: the label in '{}' is empty", row.place(),
                  shortened(column));
    result.label = found ? *found : options_.labels.need(*label, row.place());
    if (!options_.model_ids.empty())
      result.label = options_.model_ids[static_cast<std::size_t>(result.label)];
    return result;
  }
  const auto kind = row.kind(column);
  if (quiet && (!is_number(*label) || (kind && kind != Record::Kind::number))) return std::nullopt;
  const double score = row.number(column);
  const bool is_bounded = options_.least < options_.most;
  if (!std::isfinite(score) || (is_bounded && (score < options_.least || score > options_.most))) {
    if (quiet) return std::nullopt;
    if (!is_bounded)
      throw_error(ErrorCode::corrupt_data, "{}: the score is {}, which no model can learn",
                  row.place(), *label);
    throw_error(ErrorCode::corrupt_data, "{}: the score is {}, not between {} and {}", row.place(),
                *label, options_.least, options_.most);
  }
  result.score = static_cast<float>(score);
  return result;
}

Sample TextClassificationDataset::get(std::int64_t index) const {
  SHOAL_CHECK(index >= 0 && index < size(), "row {} of {}", index, size());
  const Row& row = rows_[static_cast<std::size_t>(index)];
  const Record record = file_->get(row.record);
  const std::string_view first = record.text(options_.columns.first);
  std::string_view second;
  if (!options_.columns.second.empty()) second = record.text(options_.columns.second);
  Sample sample =
      model_input(*tokenizer_, first, options_.columns.second.empty() ? nullptr : &second,
                  options_.max_seq_length);
  if (is_regression())
    sample.values = {row.score};
  else
    sample.labels = {row.label};
  return sample;
}

const std::string& TextClassificationDataset::first_skipped() const {
  return file_->skipped() > 0 ? file_->first_skipped() : first_skipped_;
}

}  // namespace shoal
