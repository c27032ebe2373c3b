#include "shoal/train/tasks/sequence_to_sequence/pair_dataset.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/data/model_input.h"

namespace shoal {
namespace {

// Throws unless a text and the template's tokens fit into `max_length`.
void check_room(const SequenceTemplate& sequence, std::int64_t max_length, const char* option) {
  const std::int64_t special = sequence.special_tokens(false);
  if (max_length > special) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} {} leaves no room for text beside {} special tokens", option,
                          max_length, special),
              fmt::format("raise {}", option));
}

// A text of the object in the row's field `within`.
const std::string* text_within(const nlohmann::json& object, const std::string& name) {
  const nlohmann::json* const field = find_field(object, name);
  return field != nullptr && field->is_string() ? field->get_ptr<const std::string*>() : nullptr;
}

}  // namespace

PairDataset::PairDataset(std::shared_ptr<const RecordFile> file,
                         std::shared_ptr<const Tokenizer> tokenizer, PairOptions options)
    : file_(std::move(file)), tokenizer_(std::move(tokenizer)), options_(std::move(options)) {
  check_room(options_.source_template, options_.max_source_length, "max_source_length");
  check_room(options_.target_template, options_.max_target_length, "max_target_length");
  for (std::int64_t record = 0; record < file_->size(); ++record) {
    progress::made_of();
    try {
      texts_of(record);
      rows_.push_back(record);
    } catch (const Error& error) {
      if (options_.bad == BadRecords::stop) throw;
      if (skipped_++ == 0) first_skipped_ = error.message();
    }
  }
}

PairDataset::Texts PairDataset::texts_of(std::int64_t record) const {
  const Record row = file_->get(record);
  const PairColumns& columns = options_.columns;
  if (columns.within.empty()) {
    Texts texts{row.text(columns.source), std::nullopt};
    if (!options_.may_lack_targets || row.has(columns.target))
      texts.target = row.text(columns.target);
    return texts;
  }
  const nlohmann::json object = parse_json(row.object(columns.within), row.place());
  const auto need = [&](const std::string& name) {
    if (const std::string* const text = text_within(object, name)) return *text;
    throw_error(ErrorCode::corrupt_data, "{}: '{}' has no text in '{}'", row.place(),
                shortened(columns.within), shortened(name));
  };
  Texts texts{need(columns.source), std::nullopt};
  if (!options_.may_lack_targets || find_field(object, columns.target) != nullptr)
    texts.target = need(columns.target);
  return texts;
}

std::vector<TokenId> PairDataset::tokens_of(const std::string& text,
                                            const SequenceTemplate& sequence,
                                            std::int64_t max_length) const {
  const Encoding tokens = tokenizer_->encode(text, {.add_special_tokens = false});
  const std::int64_t room = max_length - sequence.special_tokens(false);
  return join(sequence, slice(tokens, {0, std::min(std::ssize(tokens.ids), room)})).ids;
}

Sample PairDataset::get(std::int64_t index) const {
  SHOAL_CHECK(index >= 0 && index < size(), "row {} of {}", index, size());
  const Texts texts = texts_of(rows_[static_cast<std::size_t>(index)]);
  Sample sample;
  sample.input_ids = tokens_of(options_.source_prefix + texts.source, options_.source_template,
                               options_.max_source_length);
  SHOAL_CHECK(!sample.input_ids.empty(), "row {} of {} has an empty source", index, file_->path());
  if (texts.target)
    sample.labels = tokens_of(*texts.target, options_.target_template, options_.max_target_length);
  return sample;
}

}  // namespace shoal
