#include "shoal/train/data/masking.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "shoal/kernels/random.h"
#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

// Word 3 of the Philox counter. Permutations with the same seed use small numbers there, so masking
// and permutations draw different random numbers.
constexpr std::uint32_t kSite = 0x6d6c6d00;

std::uint64_t threshold(double probability) {
  return static_cast<std::uint64_t>(std::llround(probability * 0x1p32));
}

bool is_share(double value) { return value >= 0 && value <= 1; }

// Word boundary marks. WordPiece marks every piece but a word's first; SentencePiece (▁) and
// byte-level BPE (Ġ) mark the first.
constexpr std::string_view kGoesOn = "##";
constexpr std::array kBegins = {std::string_view("\xE2\x96\x81"), std::string_view("\xC4\xA0")};

bool has_mark(std::string_view token, std::string_view mark) {
  return token.starts_with(mark) && (mark != kGoesOn || token.size() > mark.size());
}

// The most frequent mark; empty if there is none. A vocabulary may contain any of them as text
// (GPT-2's has "####").
std::string_view mark_of(const Tokenizer& tokenizer) {
  std::string_view most;
  std::int64_t most_tokens = 0;
  for (const std::string_view mark : {kGoesOn, kBegins[0], kBegins[1]}) {
    std::int64_t tokens = 0;
    for (TokenId id = 0; id <= tokenizer.max_id(); ++id)
      if (const auto token = tokenizer.id_to_token(id); token && has_mark(*token, mark)) ++tokens;
    if (tokens > most_tokens) most = mark;
    most_tokens = std::max(most_tokens, tokens);
  }
  return most;
}

}  // namespace

MaskingCollator::MaskingCollator(const Tokenizer& tokenizer, const MaskingOptions& options)
    : options_(options),
      padding_(tokenizer.roles().pad.value_or(0), options.pad_to_multiple_of),
      kinds_(static_cast<std::size_t>(tokenizer.max_id() + 1), Kind::word),
      vocab_size_(tokenizer.vocab_size()),
      mask_(0) {
  SHOAL_CHECK(is_share(options.probability), "masking: mlm_probability is {}; it goes from 0 to 1",
              options.probability);
  SHOAL_CHECK(is_share(options.mask_share) && is_share(options.random_share) &&
                  options.mask_share + options.random_share <= 1,
              "masking: {} of the hidden tokens masked and {} random; together they are at most 1",
              options.mask_share, options.random_share);
  if (!tokenizer.roles().mask)
    throw Error(ErrorCode::invalid_argument,
                "masking: the tokenizer has no mask token, which masked language modelling needs",
                "train a causal language model with it, or take the tokenizer of an encoder");
  mask_ = *tokenizer.roles().mask;
  const std::string_view mark = options.whole_words ? mark_of(tokenizer) : std::string_view();
  for (std::size_t id = 0; id < kinds_.size(); ++id) {
    const auto token = tokenizer.id_to_token(static_cast<TokenId>(id));
    if (tokenizer.is_special(static_cast<TokenId>(id)))
      kinds_[id] = Kind::special;
    else if (!mark.empty() && token && has_mark(*token, mark) == (mark == kGoesOn))
      kinds_[id] = Kind::piece;
  }
  if (options.whole_words && mark.empty())
    throw Error(ErrorCode::invalid_argument,
                "masking: whole words are asked for, but no token begins with '##', '▁' or 'Ġ'",
                "whole words are known of WordPiece, SentencePiece and byte-level BPE");
}

Batch MaskingCollator::collate_at(const BatchPlace& place, std::span<const Sample> samples,
                                  MemoryResource& memory) const {
  Batch batch = padding_.collate(samples, memory);
  const auto columns = static_cast<std::size_t>(batch.input_ids.shape()[1]);
  batch.labels = Tensor::empty(batch.input_ids.shape(), DType::i32, memory, MemoryTag::data);
  auto* ids = batch.input_ids.data<std::int32_t>();
  auto* labels = batch.labels.data<std::int32_t>();
  std::fill_n(labels, batch.labels.count(), kIgnoreLabel);
  for (std::size_t row = 0; row < samples.size(); ++row) {
    const std::size_t length = samples[row].input_ids.size();
    hide(samples[row],
         {{ids + row * columns, length},
          {labels + row * columns, length},
          place.ordinals.first + static_cast<std::int64_t>(row) * place.ordinals.stride,
          place.epoch});
  }
  return batch;
}

void MaskingCollator::hide(const Sample& sample, const Row& row) const {
  const std::uint64_t chosen_below = threshold(options_.probability);
  const std::uint64_t mask_below = threshold(options_.mask_share);
  const std::uint64_t random_below = threshold(options_.mask_share + options_.random_share);
  const auto ordinal = static_cast<std::uint64_t>(row.ordinal);
  bool in_word = false, chosen = false;
  for (std::size_t t = 0; t < row.ids.size(); ++t) {
    const std::int32_t id = row.ids[t];
    if (id < 0 || static_cast<std::size_t>(id) >= kinds_.size())
      throw_error(ErrorCode::invalid_argument,
                  "masking: token {} of a sample is {}, but ids end at {}", t, id,
                  kinds_.size() - 1);
    const Kind kind = kinds_[static_cast<std::size_t>(id)];
    if (kind == Kind::special ||
        (!sample.attention_mask.empty() && sample.attention_mask[t] == 0)) {
      in_word = false;
      continue;
    }
    const auto random = kernels::philox(
        options_.seed,
        {static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(ordinal),
         static_cast<std::uint32_t>(row.epoch), kSite ^ static_cast<std::uint32_t>(ordinal >> 32)});
    if (!options_.whole_words || kind == Kind::word || !in_word) chosen = random[0] < chosen_below;
    in_word = true;
    if (!chosen) continue;
    row.labels[t] = id;
    if (random[1] < mask_below) {
      row.ids[t] = mask_;
    } else if (random[1] < random_below) {
      __extension__ using Wide = unsigned __int128;
      const std::uint64_t bits = std::uint64_t{random[3]} << 32 | random[2];
      row.ids[t] = static_cast<std::int32_t>(
          (static_cast<Wide>(bits) * static_cast<std::uint64_t>(vocab_size_)) >> 64);
    }
  }
}

}  // namespace shoal
