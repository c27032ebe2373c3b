#include "shoal/train/data/corruption.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

// Philox sites, apart from those of masking and permutations.
constexpr std::uint32_t kSpanSite = 0x74356d00, kDenoisingSite = 0x62617200;

std::int64_t rounded(double value) {  // halves to even, as Python's round() and NumPy's
  return static_cast<std::int64_t>(std::nearbyint(value));
}

struct SpanCounts {
  std::int64_t noise = 0, text = 0, spans = 0;  // tokens hidden and not; hidden spans
};

SpanCounts span_counts(std::int64_t tokens, const SpanCorruptionOptions& options) {
  SpanCounts counts;
  counts.noise = std::clamp<std::int64_t>(
      rounded(static_cast<double>(tokens) * options.noise_density), 1, tokens - 1);
  counts.text = tokens - counts.noise;
  counts.spans =
      std::max<std::int64_t>(1, rounded(static_cast<double>(std::min(counts.noise, counts.text)) /
                                        options.mean_noise_span_length));
  return counts;
}

// Cuts `items` things in `count` runs of at least one, all ways equally likely. Returns their
// lengths.
std::vector<std::int64_t> segments(std::int64_t items, std::int64_t count, Draws& draws) {
  std::vector<std::uint8_t> begins(static_cast<std::size_t>(items - 1), 0);
  std::fill_n(begins.begin(), count - 1, std::uint8_t{1});
  shuffle(begins, draws);
  std::vector<std::int64_t> lengths = {1};
  for (const std::uint8_t begin : begins)
    if (begin != 0)
      lengths.push_back(1);
    else
      ++lengths.back();
  return lengths;
}

using Corrupt = std::function<Sample(std::span<const TokenId> tokens, Draws& draws)>;

Batch collated(const PaddingCollator& padding, const BatchPlace& place, std::uint64_t seed,
               std::uint32_t site, std::span<const Sample> samples, MemoryResource& memory,
               const Corrupt& corrupt) {
  std::vector<Sample> corrupted;
  corrupted.reserve(samples.size());
  for (std::size_t row = 0; row < samples.size(); ++row) {
    SampleDraws draws(seed, site,
                      place.ordinals.first + static_cast<std::int64_t>(row) * place.ordinals.stride,
                      place.epoch);
    corrupted.push_back(corrupt(samples[row].input_ids, draws));
  }
  return padding.collate(corrupted, memory);
}

TokenId pad_of(const Tokenizer& tokenizer) { return tokenizer.roles().pad.value_or(0); }

}  // namespace

SpanCorruptionLengths span_corruption_lengths(std::int64_t inputs,
                                              const SpanCorruptionOptions& options) {
  SHOAL_CHECK(options.noise_density > 0 && options.noise_density <= 0.5,
              "span corruption: mlm_probability is {}; it is above 0 and at most 0.5",
              options.noise_density);
  SHOAL_CHECK(options.mean_noise_span_length >= 1,
              "span corruption: mean_noise_span_length is {}; it is at least 1",
              options.mean_noise_span_length);
  constexpr std::int64_t kShortest = 2;  // a token of text and one that is hidden
  const auto input_of = [&](std::int64_t tokens) {
    const SpanCounts counts = span_counts(tokens, options);
    return counts.text + counts.spans + 1;
  };
  SHOAL_CHECK(input_of(kShortest) <= inputs,
              "span corruption: a block_size of {} has no room for text, a sentinel and </s>",
              inputs);
  std::int64_t tokens = kShortest;
  while (input_of(tokens + 1) <= inputs) ++tokens;
  SpanCounts counts = span_counts(tokens, options);
  // At a density of one half the script prefers a target that is no longer than the input.
  if (options.noise_density == 0.5 && counts.noise + counts.spans + 1 > inputs)
    counts = span_counts(--tokens, options);
  return {.tokens = tokens, .targets = counts.noise + counts.spans + 1};
}

SpanCorruptionCollator::SpanCorruptionCollator(const Tokenizer& tokenizer, std::int64_t tokens,
                                               const SpanCorruptionOptions& options)
    : options_(options),
      padding_(pad_of(tokenizer), options.padding.inputs, LabelsOf::sequence,
               options.padding.targets) {
  SHOAL_CHECK(tokenizer.roles().eos.has_value(),
              "span corruption: the tokenizer names no end of text (eos_token); add it to "
              "special_tokens_map.json");
  end_ = *tokenizer.roles().eos;
  const std::int64_t spans = span_counts(tokens, options).spans;
  while (std::ssize(sentinels_) < spans) {
    const auto id = tokenizer.token_to_id(fmt::format("<extra_id_{}>", sentinels_.size()));
    if (!id)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("span corruption: a block of {} tokens has {} hidden spans, but the "
                              "tokenizer {} sentinels (<extra_id_0> and so on)",
                              tokens, spans, sentinels_.size()),
                  sentinels_.empty() ? "take a tokenizer of T5, or --task denoising with BART's"
                                     : "give a smaller block_size or mlm_probability");
    sentinels_.push_back(*id);
  }
}

Batch SpanCorruptionCollator::collate_at(const BatchPlace& place, std::span<const Sample> samples,
                                         MemoryResource& memory) const {
  return collated(padding_, place, options_.seed, kSpanSite, samples, memory,
                  [this](auto tokens, Draws& draws) { return corrupted(tokens, draws); });
}

Sample SpanCorruptionCollator::corrupted(std::span<const TokenId> tokens, Draws& draws) const {
  SHOAL_CHECK(tokens.size() >= 2, "span corruption: a block of {} tokens", tokens.size());
  const SpanCounts counts = span_counts(std::ssize(tokens), options_);
  SHOAL_CHECK(counts.spans <= std::ssize(sentinels_),
              "span corruption: {} tokens have {} spans, and there are {} sentinels", tokens.size(),
              counts.spans, sentinels_.size());
  const std::vector<std::int64_t> hidden = segments(counts.noise, counts.spans, draws);
  const std::vector<std::int64_t> text = segments(counts.text, counts.spans, draws);
  Sample sample;
  auto next = tokens.begin();
  const auto take = [&next](std::vector<TokenId>& into, std::int64_t count) {
    into.insert(into.end(), next, next + count);
    next += count;
  };
  for (std::size_t span = 0; span < hidden.size(); ++span) {
    take(sample.input_ids, text[span]);
    sample.input_ids.push_back(sentinels_[span]);
    sample.labels.push_back(sentinels_[span]);
    take(sample.labels, hidden[span]);
  }
  sample.input_ids.push_back(end_);
  sample.labels.push_back(end_);
  return sample;
}

DenoisingCollator::DenoisingCollator(const Tokenizer& tokenizer, const DenoisingOptions& options)
    : options_(options),
      padding_(pad_of(tokenizer), options.padding.inputs, LabelsOf::sequence,
               options.padding.targets),
      kinds_(static_cast<std::size_t>(tokenizer.max_id() + 1), Kind::word) {
  SHOAL_CHECK(
      options.mask_ratio > 0 && options.mask_ratio <= 1 && options.permute_sentence_ratio >= 0 &&
          options.permute_sentence_ratio <= 1,
      "denoising: mlm_probability is {} and permute_sentence_ratio {}; the first is above 0 "
      "and at most 1, the second from 0 to 1",
      options.mask_ratio, options.permute_sentence_ratio);
  // Nearly all spans of a smaller mean would be empty, and drawing enough of them would not end.
  SHOAL_CHECK(options.poisson_lambda >= 0.1 && options.poisson_lambda <= 100,
              "denoising: poisson_lambda is {}; it is from 0.1 to 100", options.poisson_lambda);
  if (!tokenizer.roles().mask)
    throw Error(ErrorCode::invalid_argument,
                "denoising: the tokenizer has no mask token, which stands for hidden spans",
                "take a tokenizer of BART, or --task span-corruption with T5's");
  mask_ = *tokenizer.roles().mask;
  for (TokenId id = 0; id <= tokenizer.max_id(); ++id) {
    const auto token = tokenizer.id_to_token(id);
    if (tokenizer.is_special(id))
      kinds_[static_cast<std::size_t>(id)] = Kind::special;
    else if (token && !token->empty() &&
             std::string(".!?").find(token->back()) != std::string::npos)
      kinds_[static_cast<std::size_t>(id)] = Kind::sentence_end;
  }
}

Batch DenoisingCollator::collate_at(const BatchPlace& place, std::span<const Sample> samples,
                                    MemoryResource& memory) const {
  return collated(padding_, place, options_.seed, kDenoisingSite, samples, memory,
                  [this](auto tokens, Draws& draws) { return corrupted(tokens, draws); });
}

Sample DenoisingCollator::corrupted(std::span<const TokenId> tokens, Draws& draws) const {
  for (const TokenId id : tokens)
    SHOAL_CHECK(id >= 0 && static_cast<std::size_t>(id) < kinds_.size(),
                "denoising: a token is {}, but ids end at {}", id, kinds_.size() - 1);
  Sample sample;
  sample.labels.assign(tokens.begin(), tokens.end());
  sample.input_ids = sample.labels;
  if (options_.permute_sentence_ratio > 0) permute_sentences(sample.input_ids, draws);
  sample.input_ids = with_masked_spans(sample.input_ids, draws);
  return sample;
}

void DenoisingCollator::permute_sentences(std::vector<TokenId>& ids, Draws& draws) const {
  for (std::size_t begin = 0; begin < ids.size();) {
    std::vector<std::size_t> ends;  // of this document's sentences
    std::size_t end = begin;
    for (; end < ids.size() && kind_of(ids[end]) != Kind::special; ++end)
      if (kind_of(ids[end]) == Kind::sentence_end) ends.push_back(end + 1);
    if (end > begin && (ends.empty() || ends.back() != end)) ends.push_back(end);
    const auto sentences = std::ssize(ends);
    const auto moving = static_cast<std::size_t>(
        std::ceil(static_cast<double>(sentences) * options_.permute_sentence_ratio));
    if (sentences > 1) {
      std::vector<std::int64_t> chosen = shuffled(sentences, draws), order(ends.size());
      chosen.resize(moving);
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
      const std::vector<std::int64_t> places = shuffled(std::ssize(chosen), draws);
      for (std::size_t i = 0; i < chosen.size(); ++i)
        order[static_cast<std::size_t>(chosen[i])] = chosen[static_cast<std::size_t>(places[i])];
      std::vector<TokenId> document;
      for (const std::int64_t sentence : order) {
        const auto at = static_cast<std::size_t>(sentence);
        const auto first = static_cast<std::ptrdiff_t>(at == 0 ? begin : ends[at - 1]);
        document.insert(document.end(), ids.begin() + first,
                        ids.begin() + static_cast<std::ptrdiff_t>(ends[at]));
      }
      std::ranges::copy(document, ids.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    begin = end + 1;
  }
}

std::vector<TokenId> DenoisingCollator::with_masked_spans(std::span<const TokenId> ids,
                                                          Draws& draws) const {
  std::vector<std::size_t> words;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (kind_of(ids[i]) != Kind::special) words.push_back(i);
  const auto wanted =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(words.size()) * options_.mask_ratio));
  std::vector<std::int64_t> lengths;
  for (std::int64_t sum = 0; sum < wanted;)
    for (std::int64_t i = 0; i < wanted; ++i)
      sum += lengths.emplace_back(draws.poisson(options_.poisson_lambda));
  std::erase(lengths, 0);
  // The spans up to the one whose end comes nearest to `wanted`.
  std::int64_t sum = 0, nearest = wanted;
  std::size_t spans = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    sum += lengths[i];
    if (std::abs(sum - wanted) < nearest || i == 0) {
      nearest = std::abs(sum - wanted);
      spans = i + 1;
    }
  }
  const std::vector<std::int64_t> starts = shuffled(std::ssize(words), draws);
  std::vector<std::uint8_t> hidden(ids.size(), 0);
  for (std::size_t span = 0; span < std::min(spans, starts.size()); ++span) {
    const std::size_t first = words[static_cast<std::size_t>(starts[span])];
    const std::size_t last = std::min(ids.size(), first + static_cast<std::size_t>(lengths[span]));
    std::fill(hidden.begin() + static_cast<std::ptrdiff_t>(first),
              hidden.begin() + static_cast<std::ptrdiff_t>(last), std::uint8_t{1});
  }
  std::vector<TokenId> result;
  bool in_span = false;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool hides = hidden[i] != 0 && kind_of(ids[i]) != Kind::special;
    if (!hides)
      result.push_back(ids[i]);
    else if (!in_span)
      result.push_back(mask_);
    in_span = hides;
  }
  return result;
}

}  // namespace shoal
