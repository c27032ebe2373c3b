#include "shoal/train/data/model_input.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal {

std::int64_t room_for_text(const SequenceTemplate& sequence, bool of_pair,
                           std::int64_t max_length) {
  const std::int64_t special = sequence.special_tokens(of_pair);
  if (max_length <= special)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("max_seq_length {} leaves no room for text beside {} special tokens",
                            max_length, special),
                "raise max_seq_length");
  return max_length - special;
}

PairLengths longest_first(PairLengths tokens, std::int64_t room) {
  if (tokens.first + tokens.second <= room) return tokens;
  const bool swap = tokens.first > tokens.second;
  std::int64_t shorter = std::min(tokens.first, tokens.second);
  std::int64_t longer = std::max(shorter, room - shorter);
  if (shorter + longer > room) {
    shorter = room / 2;
    longer = room - shorter;
  }
  return swap ? PairLengths{longer, shorter} : PairLengths{shorter, longer};
}

std::int64_t window_count(std::int64_t tokens, std::int64_t length, std::int64_t stride) {
  SHOAL_CHECK(length > 0 && stride >= 0 && stride < length,
              "windows of {} tokens cannot overlap by {}", length, stride);
  const std::int64_t step = length - stride;
  return tokens <= length ? 1 : 1 + (tokens - length + step - 1) / step;
}

TextSpan window(std::int64_t tokens, std::int64_t length, std::int64_t stride, std::int64_t index) {
  const std::int64_t begin = index * (length - stride);
  return {begin, std::min(begin + length, tokens)};
}

Encoding slice(const Encoding& encoding, TextSpan tokens) {
  Encoding part;
  const auto copy = [&](const auto& from, auto& to) {
    if (!from.empty()) to.assign(from.begin() + tokens.begin, from.begin() + tokens.end);
  };
  copy(encoding.ids, part.ids);
  copy(encoding.bytes, part.bytes);
  copy(encoding.characters, part.characters);
  copy(encoding.special, part.special);
  copy(encoding.types, part.types);
  return part;
}

Sample sample_of(const Encoding& joined) {
  Sample sample;
  sample.input_ids = joined.ids;
  if (std::any_of(joined.types.begin(), joined.types.end(), [](auto type) { return type != 0; }))
    sample.token_type_ids.assign(joined.types.begin(), joined.types.end());
  return sample;
}

Sample model_input(const Tokenizer& tokenizer, std::string_view first,
                   const std::string_view* second, std::int64_t max_length) {
  const SequenceTemplate& sequence = tokenizer.sequence_template();
  const std::int64_t room = room_for_text(sequence, second != nullptr, max_length);
  const auto size = [](const Encoding& encoding) {
    return static_cast<std::int64_t>(encoding.ids.size());
  };
  const Encoding a = tokenizer.encode(first, {.add_special_tokens = false});
  if (second == nullptr) return sample_of(join(sequence, slice(a, {0, std::min(size(a), room)})));
  const Encoding b = tokenizer.encode(*second, {.add_special_tokens = false});
  const PairLengths kept = longest_first({size(a), size(b)}, room);
  const Encoding cut = slice(b, {0, kept.second});
  return sample_of(join(sequence, slice(a, {0, kept.first}), &cut));
}

}  // namespace shoal
