#include "shoal/train/tasks/token_classification/tagged_dataset.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/model_input.h"
#include "shoal/train/data/tokenizer/byte_level_bpe.h"

namespace shoal {
namespace {

// "B-X" as "I-X"; run_ner replaces every "B-" in the name.
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
      // transformers asks byte-level tokenizers for add_prefix_space here.
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
    std::vector<std::int32_t>& tags = tags_.emplace_back();
    for (const std::string& tag : sentence.tags) tags.push_back(labels.need(tag, sentence.place));
  }
}

Sample TaggedDataset::get(std::int64_t index) const {
  SHOAL_CHECK(index >= 0 && index < size(), "sentence {} of {}", index, size());
  const TaggedSentence& sentence = text_->sentences[static_cast<std::size_t>(index)];
  const std::vector<std::int32_t>& tags = tags_[static_cast<std::size_t>(index)];
  const auto room = static_cast<std::size_t>(room_);
  Encoding text;
  std::vector<std::int32_t> labels;
  const auto label = [&](std::size_t tag) {
    return options_.model_ids.empty() ? static_cast<std::int32_t>(tag) : options_.model_ids[tag];
  };
  for (std::size_t w = 0; w < sentence.words.size() && text.ids.size() < room; ++w) {
    const std::string& word = sentence.words[w];
    if (space_before_words_ && !word.starts_with(' '))
      tokenizer_->append_ids(" " + word, text.ids);
    else
      tokenizer_->append_ids(word, text.ids);
    const std::size_t first = labels.size();
    labels.resize(text.ids.size(), kIgnoreLabel);
    if (tags.empty() || labels.size() == first) continue;
    const auto tag = static_cast<std::size_t>(tags[w]);
    labels[first] = label(tag);
    if (options_.label_all_tokens)
      std::fill(labels.begin() + static_cast<std::ptrdiff_t>(first) + 1, labels.end(),
                label(static_cast<std::size_t>(inside_[tag])));
  }
  text.ids.resize(std::min(text.ids.size(), room));
  labels.resize(text.ids.size());

  const SequenceTemplate& sequence = tokenizer_->sequence_template();
  Sample sample = sample_of(join(sequence, text));
  for (const auto& piece : sequence.single) {
    if (piece.text == SequenceTemplate::kSpecial)
      sample.labels.push_back(kIgnoreLabel);
    else
      sample.labels.insert(sample.labels.end(), labels.begin(), labels.end());
  }
  return sample;
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
