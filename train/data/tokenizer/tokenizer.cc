#include "shoal/train/data/tokenizer/tokenizer.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/train/data/tokenizer/work.h"

namespace shoal {

SequenceTemplate SequenceTemplate::bert(TokenId cls, TokenId sep) {
  return {
      .single = {{.id = cls}, {.text = 0}, {.id = sep}},
      .pair = {
          {.id = cls}, {.text = 0}, {.id = sep}, {.text = 1, .type = 1}, {.id = sep, .type = 1}}};
}

SequenceTemplate SequenceTemplate::roberta(TokenId cls, TokenId sep) {
  return {.single = {{.id = cls}, {.text = 0}, {.id = sep}},
          .pair = {{.id = cls}, {.text = 0}, {.id = sep}, {.id = sep}, {.text = 1}, {.id = sep}}};
}

std::int64_t SequenceTemplate::special_tokens(bool of_pair) const {
  const auto& pieces = of_pair ? pair : single;
  return std::count_if(pieces.begin(), pieces.end(),
                       [](const Piece& piece) { return piece.text == kSpecial; });
}

bool SequenceTemplate::adds_tokens() const {
  return special_tokens(false) + special_tokens(true) > 0;
}

Encoding join(const SequenceTemplate& sequence, const Encoding& first, const Encoding* second) {
  Encoding joined;
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  const bool offsets = first.bytes.size() == first.ids.size();
  for (const auto& piece : second != nullptr ? sequence.pair : sequence.single) {
    const auto type = static_cast<std::uint8_t>(piece.type);
    if (piece.text == SequenceTemplate::kSpecial) {
      joined.ids.push_back(piece.id);
      joined.special.push_back(1);
      joined.types.push_back(type);
      if (!offsets) continue;
      joined.bytes.emplace_back();
      joined.characters.emplace_back();
    } else {
      const Encoding& text = piece.text == 0 ? first : *second;
      append(joined.ids, text.ids);
      append(joined.special, text.special);
      append(joined.bytes, text.bytes);
      append(joined.characters, text.characters);
      joined.types.insert(joined.types.end(), text.ids.size(), type);
    }
  }
  return joined;
}

std::vector<Encoding> encode_batch(const Tokenizer& tokenizer,
                                   std::span<const std::string_view> texts,
                                   const EncodeOptions& options, int threads) {
  std::vector<Encoding> result(texts.size());
  std::size_t bytes = 0;
  for (const std::string_view text : texts) bytes += text.size();
  CorpusWork work(static_cast<std::int64_t>(bytes));
  constexpr std::int64_t kGrain = 8;  // texts; below that, a thread costs more than it gains
  parallel_for(threads, static_cast<std::int64_t>(texts.size()), kGrain,
               [&](std::int64_t begin, std::int64_t end) {
                 const CorpusWork::Scope scope(work);
                 for (std::int64_t i = begin; i < end; ++i) {
                   const auto at = static_cast<std::size_t>(i);
                   progress::made_of(texts[at].size());  // has an effect only in the calling thread
                   try {
                     result[at] = tokenizer.encode(texts[at], options);
                   } catch (const Error& error) {
                     throw Error(error.code(), fmt::format("text {}: {}", i, error.message()),
                                 error.remedy());
                   }
                 }
               });
  work.check();
  return result;
}

}  // namespace shoal
