#include "shoal/train/tasks/question_answering/squad_features.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/train/data/model_input.h"

namespace shoal {
namespace {

std::int64_t size_of(const Encoding& encoding) {
  return static_cast<std::int64_t>(encoding.ids.size());
}

std::vector<Encoding> encode_all(const Tokenizer& tokenizer,
                                 const std::vector<std::string_view>& texts, bool offsets,
                                 int threads) {
  return encode_batch(tokenizer, texts, {.add_special_tokens = false, .offsets = offsets}, threads);
}

// Number of special tokens before the second text; -1 unless the question comes first.
std::int64_t special_before_context(const SequenceTemplate& sequence) {
  std::int64_t special = 0;
  bool question = false;
  for (const auto& piece : sequence.pair) {
    if (piece.text == 1) return question ? special : -1;
    question = question || piece.text == 0;
    special += piece.text == SequenceTemplate::kSpecial;
  }
  return -1;
}

// Finds the tokens of the window that hold `answer`, as indices in the context. False if the window
// does not contain all of it.
bool find_answer(const Encoding& context, TextSpan window, TextSpan answer, TextSpan& tokens) {
  if (window.begin == window.end) return false;
  const auto at = [&](std::int64_t token) {
    return context.bytes[static_cast<std::size_t>(token)];
  };
  if (at(window.begin).begin > answer.begin || at(window.end - 1).end < answer.end) return false;
  std::int64_t first = window.begin, last = window.end - 1;
  while (first + 1 < window.end && at(first + 1).begin <= answer.begin) ++first;
  while (last > window.begin && at(last - 1).end >= answer.end) --last;
  tokens = {first, last};
  return true;
}

}  // namespace

SquadDataset::SquadDataset(std::shared_ptr<const SquadFile> file, const Tokenizer& tokenizer,
                           const SquadFeatureOptions& options)
    : file_(std::move(file)), sequence_(tokenizer.sequence_template()), options_(options) {
  SHOAL_CHECK(
      special_before_context(sequence_) >= 0,
      "question answering needs a tokenizer whose template puts a question before a context");
  SHOAL_CHECK(options.max_query_length > 0, "max_query_length is {}", options.max_query_length);
  const TokenRoles& roles = tokenizer.roles();
  cls_ = roles.cls.value_or(roles.bos.value_or(-1));
  const std::vector<std::string_view> contexts(file_->contexts.begin(), file_->contexts.end());
  contexts_ = encode_all(tokenizer, contexts, true, options.threads);
  std::vector<std::string_view> questions;
  for (const SquadQuestion& question : file_->questions) {
    questions.push_back(question.text);
    has_answers_ = has_answers_ || !question.answers.empty();
  }
  questions_ = encode_all(tokenizer, questions, false, options.threads);
  first_feature_.push_back(0);
  for (std::size_t i = 0; i < questions_.size(); ++i) {
    progress::made_of();
    first_feature_.push_back(size() + count_features(static_cast<std::int64_t>(i)));
  }
  for (Encoding& context : contexts_) context.characters = {};
}

std::int32_t SquadDataset::cls_position(std::int64_t question_tokens) const {
  std::int64_t position = 0;
  for (const auto& piece : sequence_.pair) {
    if (piece.text == 1) break;
    if (piece.text == SequenceTemplate::kSpecial && piece.id == cls_)
      return static_cast<std::int32_t>(position);
    position += piece.text == 0 ? question_tokens : 1;
  }
  return 0;
}

const Encoding& SquadDataset::context_of(std::int64_t question) const {
  const SquadQuestion& one = file_->questions[static_cast<std::size_t>(question)];
  return contexts_[static_cast<std::size_t>(one.context)];
}

std::int64_t SquadDataset::room_beside(const Encoding& question) const {
  return options_.max_seq_length - sequence_.special_tokens(true) - size_of(question);
}

std::int64_t SquadDataset::count_features(std::int64_t question) {
  Encoding& words = questions_[static_cast<std::size_t>(question)];
  if (size_of(words) > options_.max_query_length)
    words = slice(words, {0, options_.max_query_length});
  const std::int64_t tokens = size_of(context_of(question)), room = room_beside(words);
  if (tokens <= room) return 1;
  if (room <= 0 || options_.doc_stride >= room)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{}, question {}: beside its {} tokens, max_seq_length {} leaves {} to the "
                    "context, no more than doc_stride {}",
                    file_->path, file_->questions[static_cast<std::size_t>(question)].id,
                    size_of(words), options_.max_seq_length, std::max<std::int64_t>(room, 0),
                    options_.doc_stride),
        "lower doc_stride or max_query_length, or raise max_seq_length");
  return window_count(tokens, room, options_.doc_stride);
}

Sample SquadDataset::get(std::int64_t index) const {
  const Feature feature = this->feature(index);
  const Encoding& context = context_of(feature.question);
  Encoding window;
  window.ids.assign(context.ids.begin() + feature.context.begin,
                    context.ids.begin() + feature.context.end);
  Sample sample =
      sample_of(join(sequence_, questions_[static_cast<std::size_t>(feature.question)], &window));
  sample.labels = has_answers_ ? std::vector<std::int32_t>{feature.start, feature.end}
                               : std::vector<std::int32_t>{kIgnoreLabel, kIgnoreLabel};
  return sample;
}

SquadDataset::Feature SquadDataset::feature(std::int64_t index) const {
  SHOAL_CHECK(index >= 0 && index < size(), "feature {} of {}", index, size());
  const auto after = std::ranges::upper_bound(first_feature_, index);
  const std::int64_t number = after - first_feature_.begin() - 1;
  const SquadQuestion& question = file_->questions[static_cast<std::size_t>(number)];
  const Encoding& context = context_of(number);
  const Encoding& words = questions_[static_cast<std::size_t>(number)];
  const std::int64_t room = room_beside(words), tokens = size_of(context);
  const std::int64_t first = special_before_context(sequence_) + size_of(words);
  const TextSpan part = tokens <= room
                            ? TextSpan{0, tokens}
                            : window(tokens, room, options_.doc_stride, index - *std::prev(after));
  const std::int32_t none = cls_position(size_of(words));
  Feature feature{.question = number,
                  .context = part,
                  .first_context = first,
                  .tokens = first + part.end - part.begin + sequence_.special_tokens(true) -
                            special_before_context(sequence_),
                  .start = none,
                  .end = none};
  TextSpan answer;
  if (!question.answers.empty() && find_answer(context, part, question.answers[0].bytes, answer)) {
    feature.start = static_cast<std::int32_t>(answer.begin + first - part.begin);
    feature.end = static_cast<std::int32_t>(answer.end + first - part.begin);
  }
  return feature;
}

TextSpan SquadDataset::features_of(std::int64_t question) const {
  const auto at = static_cast<std::size_t>(question);
  SHOAL_CHECK(question >= 0 && at < questions_.size(), "question {} of {}", question,
              questions_.size());
  return {first_feature_[at], first_feature_[at + 1]};
}

bool SquadDataset::is_context(const Feature& feature, std::int64_t position) const {
  const std::int64_t place = position - feature.first_context;
  return place >= 0 && place < feature.context.end - feature.context.begin;
}

TextSpan SquadDataset::bytes(const Feature& feature, std::int64_t position) const {
  if (!is_context(feature, position)) return {};
  const std::int64_t token = feature.context.begin + position - feature.first_context;
  return context_of(feature.question).bytes[static_cast<std::size_t>(token)];
}

}  // namespace shoal
