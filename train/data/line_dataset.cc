#include "shoal/train/data/line_dataset.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"

namespace shoal {

LineDataset::LineDataset(std::shared_ptr<const TokenFile> file, const SequenceTemplate& sequence,
                         std::int64_t max_length, std::int64_t vocab_size, bool may_be_empty)
    : file_(std::move(file)), max_length_(max_length) {
  const std::int64_t special = sequence.special_tokens(false);
  SHOAL_CHECK(max_length > special,
              "a max_length of {} leaves no room for text beside {} special tokens", max_length,
              special);
  if (vocab_size > 0) file_->check_vocab(vocab_size);
  const auto& pieces = sequence.single;
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece, ++tail_)
    if (piece->text != SequenceTemplate::kSpecial) break;
  for (std::int64_t i = 0; i < file_->documents(); ++i) {
    progress::made_of(sizeof(TextSpan));
    const TextSpan span = file_->document(i);
    if (span.end - span.begin > special) lines_.push_back(i);
  }
  SHOAL_CHECK(may_be_empty || !lines_.empty(), "{}: none of its {} lines has text", file_->path(),
              file_->documents());
}

Sample LineDataset::get(std::int64_t index) const {
  SHOAL_CHECK(index >= 0 && index < size(), "line {} of {}", index, size());
  const TextSpan span = file_->document(lines_[static_cast<std::size_t>(index)]);
  const std::int64_t length = std::min(span.end - span.begin, max_length_);
  Sample sample;
  sample.input_ids.resize(static_cast<std::size_t>(length));
  const std::span<TokenId> ids(sample.input_ids);
  const auto head = static_cast<std::size_t>(length - tail_);
  file_->read(span.begin, ids.first(head));
  file_->read(span.end - tail_, ids.subspan(head));
  return sample;
}

}  // namespace shoal
