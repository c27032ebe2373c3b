#include "shoal/train/tasks/token_classification/tagged_dataset.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/train/data/model_input.h"
#include "shoal/train/data/tokenizer/byte_level_bpe.h"
#include "shoal/train/data/tokenizer/work.h"

namespace shoal {
namespace {

// "B-X" becomes "I-X"; like run_ner, replaces every "B-" in the name.
std::string inside_name(std::string name) {
  for (std::size_t at = name.find("B-"); at != name.npos; at = name.find("B-", at + 2))
    name[at] = 'I';
  return name;
}

}  // namespace

TaggedDataset::TaggedDataset(std::shared_ptr<const TaggedText> text,
                             std::shared_ptr<const Tokenizer> tokenizer,
                             const TaggedOptions& options)
    : text_(std::move(text)),
      tokenizer_(std::move(tokenizer)),
      options_(options),
      // transformers sets add_prefix_space for byte-level tokenizers here.
      space_before_words_(dynamic_cast<const ByteLevelBpe*>(tokenizer_.get()) != nullptr),
      room_(room_for_text(tokenizer_->sequence_template(), false, options.max_seq_length)) {
  const LabelSet& labels = options_.labels;
  SHOAL_CHECK(options_.model_ids.empty() || options_.model_ids.size() == labels.names().size(),
              "{} of the model's ids for {} tags", options_.model_ids.size(), labels.size());
  for (std::int32_t id = 0; id < labels.size(); ++id) {
    const std::string& name = labels.name(id);
    const auto inside = name.starts_with("B-") ? std::find(labels.names().begin(),
                                                           labels.names().end(), inside_name(name))
                                               : labels.names().end();
    inside_.push_back(inside == labels.names().end()
                          ? id
                          : static_cast<std::int32_t>(inside - labels.names().begin()));
  }
  for (const TaggedSentence& sentence : text_->sentences) {
    progress::made_of();
    std::vector<std::int32_t>& tags = tags_.emplace_back();
    for (const std::string& tag : sentence.tags) tags.push_back(labels.need(tag, sentence.place));
  }
}

TaggedDataset::Pieces TaggedDataset::pieces_of(std::int64_t index) const {
  SHOAL_CHECK(index >= 0 && index < size(), "sentence {} of {}", index, size());
  const TaggedSentence& sentence = text_->sentences[static_cast<std::size_t>(index)];
  Pieces pieces;
  std::vector<TokenId>& ids = pieces.text.ids;
  std::int64_t bytes = 0;
  for (const std::string& word : sentence.words) bytes += std::ssize(word);
  CorpusWork work(bytes);
  const CorpusWork::Scope scope(work);
  for (const std::string& word : sentence.words) {
    if (std::ssize(ids) >= room_) break;
    TextSpan span{.begin = std::ssize(ids)};
    if (space_before_words_ && !word.starts_with(' '))
      tokenizer_->append_ids(" " + word, ids);
    else
      tokenizer_->append_ids(word, ids);
    span.end = std::min(std::ssize(ids), room_);
    pieces.words.push_back(span);
  }
  if (std::ssize(ids) > room_) ids.resize(static_cast<std::size_t>(room_));
  return pieces;
}

Sample TaggedDataset::get(std::int64_t index) const {
  const Pieces pieces = pieces_of(index);
  const std::vector<std::int32_t>& tags = tags_[static_cast<std::size_t>(index)];
  const auto label = [&](std::int32_t tag) {
    return options_.model_ids.empty() ? tag : options_.model_ids[static_cast<std::size_t>(tag)];
  };
  std::vector<std::int32_t> labels(pieces.text.ids.size(), kIgnoreLabel);
  for (std::size_t w = 0; w < pieces.words.size() && !tags.empty(); ++w) {
    const auto [begin, end] = pieces.words[w];
    if (begin == end) continue;
    labels[static_cast<std::size_t>(begin)] = label(tags[w]);
    if (options_.label_all_tokens)
      std::fill(labels.begin() + begin + 1, labels.begin() + end,
                label(inside_[static_cast<std::size_t>(tags[w])]));
  }

  const SequenceTemplate& sequence = tokenizer_->sequence_template();
  Sample sample = sample_of(join(sequence, pieces.text));
  for (const auto& piece : sequence.single) {
    if (piece.text == SequenceTemplate::kSpecial)
      sample.labels.push_back(kIgnoreLabel);
    else
      sample.labels.insert(sample.labels.end(), labels.begin(), labels.end());
  }
  return sample;
}

std::vector<std::int64_t> TaggedDataset::first_pieces(std::int64_t index) const {
  std::int64_t before = 0;
  for (const auto& piece : tokenizer_->sequence_template().single) {
    if (piece.text != SequenceTemplate::kSpecial) break;
    ++before;
  }
  std::vector<std::int64_t> places;
  for (const TextSpan& word : pieces_of(index).words)
    if (word.begin < word.end) places.push_back(before + word.begin);
  return places;
}

std::vector<std::string> TaggedDataset::words_with_pieces(std::int64_t index) const {
  const std::vector<std::string>& words = text_->sentences[static_cast<std::size_t>(index)].words;
  const std::vector<TextSpan> pieces = pieces_of(index).words;
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i].begin < pieces[i].end) kept.push_back(words[i]);
  return kept;
}

std::vector<std::string> tags_where_labelled(std::span<const std::int32_t> classes,
                                             std::span<const std::int32_t> labels,
                                             const LabelSet& names) {
  SHOAL_CHECK(classes.size() == labels.size(), "{} predicted tags for {} labels", classes.size(),
              labels.size());
  std::vector<std::string> tags;
  for (std::size_t i = 0; i < labels.size(); ++i)
    if (labels[i] != kIgnoreLabel) tags.push_back(names.name(classes[i]));
  return tags;
}

}  // namespace shoal
