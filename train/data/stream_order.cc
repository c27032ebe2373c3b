#include "shoal/train/data/stream_order.h"

#include <numeric>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/sampler.h"

namespace shoal {
namespace {

constexpr std::uint32_t kBufferDraws = 1;  // purpose for draw_below

}  // namespace

StreamOrder::StreamOrder(std::int64_t shards, std::int64_t buffer, std::uint64_t seed)
    : shards_(shards), places_(buffer < 1 ? 1 : buffer), shuffles_(buffer > 0), seed_(seed) {
  SHOAL_CHECK(shards > 0 || shards == kUnknown, "stream: there are no shards");
  SHOAL_CHECK(buffer >= 0, "stream: a shuffle buffer of {} samples", buffer);
  begin(0);
}

void StreamOrder::begin(std::int64_t epoch) {
  SHOAL_CHECK(epoch >= 0, "stream: epoch {}", epoch);
  epoch_ = epoch;
  ended_ = false;
  if (shards_ == kUnknown) {
    order_.clear();
  } else if (shuffles_) {
    order_ = permutation(shards_, seed_, epoch);
  } else {
    order_.resize(static_cast<std::size_t>(shards_));
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
  }
  sizes_.clear();
  buffer_.clear();
  drawn_ = entered_ = next_index_ = 0;
}

std::optional<std::int64_t> StreamOrder::wanted() const {
  if (std::ssize(buffer_) == places_ || std::ssize(sizes_) == shards_ || ended_)
    return std::nullopt;
  return shards_ == kUnknown ? std::ssize(sizes_) : order_[sizes_.size()];
}

void StreamOrder::end() {
  SHOAL_ASSERT(shards_ == kUnknown);
  ended_ = true;
}

std::vector<std::int64_t> StreamOrder::upcoming(int count) const {
  std::vector<std::int64_t> shards;
  if (shards_ == kUnknown) return shards;
  const auto add = [&](const std::vector<std::int64_t>& order, std::size_t from) {
    for (std::size_t i = from; i < order.size() && std::ssize(shards) < count; ++i)
      shards.push_back(order[i]);
  };
  add(order_, sizes_.size() + (wanted() ? 1 : 0));
  for (std::int64_t epoch = epoch_ + 1; std::ssize(shards) < count; ++epoch)
    add(shuffles_ ? permutation(shards_, seed_, epoch) : order_, 0);
  return shards;
}

void StreamOrder::give(std::int64_t samples) {
  SHOAL_ASSERT(wanted().has_value() && samples >= 0);
  sizes_.push_back(samples);
  next_index_ = 0;
  fill();
}

void StreamOrder::fill() {
  if (sizes_.empty()) return;
  const std::int64_t last = std::ssize(sizes_) - 1;
  const std::int64_t shard = shards_ == kUnknown ? last : order_[sizes_.size() - 1];
  while (std::ssize(buffer_) < places_ && next_index_ < sizes_.back()) {
    buffer_.push_back({shard, next_index_++});
    ++entered_;
  }
}

StreamPlace StreamOrder::next() {
  SHOAL_ASSERT(!buffer_.empty());
  const std::uint64_t chosen =
      buffer_.size() == 1 ? 0 : draw_below(buffer_.size(), seed_, epoch_, drawn_, kBufferDraws);
  StreamPlace& place = buffer_[static_cast<std::size_t>(chosen)];
  const StreamPlace drawn = place;
  place = buffer_.back();
  buffer_.pop_back();
  ++drawn_;
  fill();
  return drawn;
}

double StreamOrder::progress() const {
  if (entered_ == 0 || (shards_ == kUnknown && !ended_)) return 0;
  const auto known = static_cast<double>(std::ssize(sizes_) - 1);
  const double of_last =
      sizes_.back() == 0 ? 1
                         : static_cast<double>(next_index_) / static_cast<double>(sizes_.back());
  return (known + of_last) /
         static_cast<double>(shards_ == kUnknown ? std::ssize(sizes_) : shards_) *
         static_cast<double>(drawn_) / static_cast<double>(entered_);
}

}  // namespace shoal
