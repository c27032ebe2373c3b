#include "shoal/train/data/sampler.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "shoal/kernels/random.h"
#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

void check_rank(std::int64_t rank, std::int64_t ranks) {
  SHOAL_CHECK(ranks > 0 && rank >= 0 && rank < ranks, "sampler: rank {} of {}", rank, ranks);
}

}  // namespace

std::uint64_t draw_below(std::uint64_t choices, std::uint64_t seed, std::int64_t epoch,
                         std::int64_t draw, std::uint32_t purpose) {
  // Attempt `a` uses word pair a % 2 of block a / 2; the block is the low half of the counter's
  // last word.
  for (std::uint32_t attempt = 0;; ++attempt) {
    const auto words = kernels::philox(
        seed, {static_cast<std::uint32_t>(draw), static_cast<std::uint32_t>(draw >> 32),
               static_cast<std::uint32_t>(epoch), purpose << 16 | attempt / 2});
    const std::size_t pair = 2 * (attempt % 2);
    const std::uint64_t bits = std::uint64_t{words[pair + 1]} << 32 | words[pair];
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(bits) * choices;
    const auto low = static_cast<std::uint64_t>(product);
    // The first comparison avoids most divisions, which take longer than the rest: a remainder is
    // always below `choices`.
    if (low >= choices || low >= (0 - choices) % choices)
      return static_cast<std::uint64_t>(product >> 64);
  }
}

std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> list(static_cast<std::size_t>(size));
  std::iota(list.begin(), list.end(), std::int64_t{0});
  // Draws some partners ahead of the exchanges, since a large list is not in the cache.
  constexpr std::int64_t kAhead = 32;
  std::array<std::int64_t*, kAhead> partners{};
  for (std::int64_t first = 0; first + 1 < size; first += kAhead) {
    const std::int64_t end = std::min(first + kAhead, size - 1);
    for (std::int64_t k = first; k < end; ++k) {
      const auto draw = draw_below(static_cast<std::uint64_t>(size - k), seed, epoch, k, 0);
      std::int64_t* const partner = list.data() + k + draw;
      __builtin_prefetch(partner, 1);
      partners[static_cast<std::size_t>(k - first)] = partner;
    }
    for (std::int64_t k = first; k < end; ++k)
      std::swap(list[static_cast<std::size_t>(k)], *partners[static_cast<std::size_t>(k - first)]);
  }
  return list;
}

std::vector<std::int64_t> group_by_length(std::vector<std::int64_t> order,
                                          const std::vector<std::int32_t>& lengths,
                                          std::int64_t batch) {
  SHOAL_CHECK(batch > 0 && order.size() <= lengths.size(),
              "sampler: {} lengths of {} samples in batches of {}", lengths.size(), order.size(),
              batch);
  const auto length = [&](std::int64_t index) { return lengths[static_cast<std::size_t>(index)]; };
  const std::int64_t size = std::ssize(order);
  const std::int64_t piece = batch * std::clamp<std::int64_t>(size / (batch * 4), 1, 50);
  std::size_t longest = 0;  // start of the piece with the longest sample
  for (std::int64_t begin = 0; begin < size; begin += piece) {
    const auto first = order.begin() + begin;
    std::stable_sort(first, order.begin() + std::min(begin + piece, size),
                     [&](std::int64_t a, std::int64_t b) { return length(a) > length(b); });
    if (length(*first) > length(order[longest])) longest = static_cast<std::size_t>(begin);
  }
  if (longest > 0) std::swap(order[0], order[longest]);
  return order;
}

DistributedSampler::DistributedSampler(std::int64_t dataset_size,
                                       const DistributedSamplerOptions& options)
    : size_(dataset_size), total_(0), options_(options) {
  check_rank(options.rank, options.ranks);
  SHOAL_CHECK(size_ > 0, "sampler: the dataset is empty");
  SHOAL_CHECK(!options.lengths || std::ssize(*options.lengths) == size_,
              "sampler: {} lengths of {} samples", options.lengths ? options.lengths->size() : 0,
              size_);
  const std::int64_t ranks = options.ranks;
  total_ = (options.drop_last ? size_ / ranks : (size_ + ranks - 1) / ranks) * ranks;
  SHOAL_CHECK(total_ > 0, "sampler: {} samples for {} ranks leave none each with drop_last", size_,
              ranks);
  set_epoch(0);
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  SHOAL_CHECK(epoch >= 0, "sampler: epoch {}", epoch);
  if (epoch == epoch_) return;
  if (options_.shuffle) permutation_ = permutation(size_, options_.seed, epoch);
  if (options_.shuffle && options_.lengths)
    permutation_ =
        group_by_length(std::move(permutation_), *options_.lengths, options_.grouped_batch);
  epoch_ = epoch;
}

std::int64_t DistributedSampler::index(std::int64_t i) const {
  SHOAL_CHECK(i >= 0 && i < samples(), "sampler: sample {} of {}", i, samples());
  const std::int64_t place = ordinal(i) % size_;  // wraps past the end, repeatedly if needed
  return options_.shuffle ? permutation_[static_cast<std::size_t>(place)] : place;
}

EvaluationSampler::EvaluationSampler(std::int64_t dataset_size, std::int64_t ranks,
                                     std::int64_t rank)
    : size_(dataset_size), ranks_(ranks), rank_(rank) {
  check_rank(rank, ranks);
  SHOAL_CHECK(size_ >= 0, "sampler: a dataset of {} samples", size_);
}

std::int64_t EvaluationSampler::samples() const {
  return size_ > rank_ ? (size_ - rank_ - 1) / ranks_ + 1 : 0;
}

std::int64_t EvaluationSampler::index(std::int64_t i) const {
  SHOAL_CHECK(i >= 0 && i < samples(), "sampler: sample {} of {}", i, samples());
  return rank_ + i * ranks_;
}

std::int64_t EvaluationSampler::batches_of_longest_rank(std::int64_t batch_size) const {
  SHOAL_CHECK(batch_size > 0, "sampler: a batch of {}", batch_size);
  const std::int64_t longest = (size_ + ranks_ - 1) / ranks_;
  return (longest + batch_size - 1) / batch_size;
}

}  // namespace shoal
