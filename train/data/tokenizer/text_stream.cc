#include "shoal/train/data/tokenizer/text_stream.h"

namespace shoal {

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const TokenId> before)
    : tokenizer_(tokenizer),
      ids_(before.begin(), before.end()),
      known_ids_(ids_.size()),
      known_(decoded()) {}

std::string TextStream::add(TokenId token) {
  ids_.push_back(token);
  const std::string text = decoded();
  if (text.size() <= known_.size() || text.ends_with("\uFFFD")) return {};
  std::string fresh = text.substr(known_.size());
  // Emit only complete characters, so that all bytes of a character stay together.
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(known_ids_));
  known_ids_ = ids_.size();
  known_ = decoded();
  return fresh;
}

std::string TextStream::finish() {
  const std::string text = decoded();
  return text.size() > known_.size() ? text.substr(known_.size()) : std::string();
}

}  // namespace shoal
