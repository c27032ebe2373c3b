#include "shoal/parallel/data/bucket_plan.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

constexpr std::int64_t kBytes = 4;     // f32
constexpr std::int64_t kGranule = 16;  // elements in a cache line

std::int64_t padded(std::int64_t count, std::int64_t to = kGranule) {
  return (count + to - 1) / to * to;
}

class Planner {
 public:
  Planner(std::span<const std::int64_t> counts, const BucketOptions& options)
      : counts_(counts),
        unit_(kGranule * options.parts),
        cut_(options.cut),
        limit_(whole_lines(options.bucket_bytes)),
        first_limit_(std::min(whole_lines(options.first_bucket_bytes), limit_)) {
    plan_.offsets.resize(counts.size());
  }

  BucketPlan plan() && {
    auto next = static_cast<int>(counts_.size()) - 1;  // from the last to the first
    next = add_first_bucket(next);
    while (next >= 0) {
      if (size(next) > limit_) {
        add_giant(next--);
        continue;
      }
      int end = next;
      while (end >= 0 && size(end) <= limit_) --end;
      add_run(next, end);
      next = end;
    }
    close();
    return std::move(plan_);
  }

 private:
  static std::int64_t whole_lines(std::int64_t bytes) {
    return std::max(bytes / kBytes / kGranule * kGranule, kGranule);
  }
  std::int64_t size(int parameter) const {
    return padded(counts_[static_cast<std::size_t>(parameter)]);
  }

  void open() {
    close();
    plan_.buckets.push_back({{}, plan_.count, plan_.count});
  }
  void close() {
    if (plan_.buckets.empty()) return;
    GradientBucket& bucket = plan_.buckets.back();
    bucket.end = plan_.count = bucket.begin + padded(bucket.end - bucket.begin, unit_);
  }
  void add(int parameter) {
    const std::int64_t count = counts_[static_cast<std::size_t>(parameter)];
    plan_.offsets[static_cast<std::size_t>(parameter)] = plan_.count;
    plan_.buckets.back().entries.push_back({parameter, 0, plan_.count, count});
    plan_.count += padded(count);
    plan_.buckets.back().end = plan_.count;
  }

  // Fills the small first bucket. If the first parameter is larger, it goes to the other buckets.
  int add_first_bucket(int next) {
    std::int64_t held = 0;
    while (next >= 0 && held + size(next) <= first_limit_) {
      if (plan_.buckets.empty()) open();
      held += size(next);
      add(next--);
    }
    return next;
  }

  void add_giant(int parameter) {
    const std::int64_t count = counts_[static_cast<std::size_t>(parameter)];
    const std::int64_t pieces = cut_ ? (size(parameter) + limit_ - 1) / limit_ : 1;
    // A multiple of the parts, so that the pieces lie end to end.
    const std::int64_t piece = padded((count + pieces - 1) / pieces, unit_);
    for (std::int64_t first = 0; first < count; first += piece) {
      open();
      if (first == 0) plan_.offsets[static_cast<std::size_t>(parameter)] = plan_.count;
      const std::int64_t here = std::min(piece, count - first);
      plan_.buckets.back().entries.push_back({parameter, first, plan_.count, here});
      plan_.count += padded(here);
      plan_.buckets.back().end = plan_.count;
    }
  }

  // Adds parameters `from` down to `end` (excluded), none above the limit. The share divides the
  // elements by the least possible number of buckets; whole parameters may need one more.
  void add_run(int from, int end) {
    std::int64_t left = 0;
    for (int i = from; i > end; --i) left += size(i);
    std::int64_t share = 0, held = 0;
    bool opened = false;
    for (int i = from; i > end; --i) {
      const std::int64_t more = size(i);
      // Close the bucket if it is nearer to its share without the next parameter.
      const bool nearer = share - held < held + more - share;
      if (!opened || held + more > limit_ || (held > 0 && nearer)) {
        open();
        opened = true;
        share = left / std::max<std::int64_t>((left + limit_ - 1) / limit_, 1);
        held = 0;
      }
      add(i);
      held += more;
      left -= more;
    }
  }

  std::span<const std::int64_t> counts_;
  std::int64_t unit_;  // every bucket's length is a multiple of it
  bool cut_;
  std::int64_t limit_, first_limit_;  // elements
  BucketPlan plan_;
};

}  // namespace

BucketPlan plan_buckets(std::span<const std::int64_t> counts, const BucketOptions& options) {
  SHOAL_CHECK(options.bucket_bytes > 0 && options.first_bucket_bytes > 0,
              "gradient buckets of {} bytes, the first of {}; both must be positive",
              options.bucket_bytes, options.first_bucket_bytes);
  SHOAL_CHECK(options.parts > 0, "gradient buckets in {} parts", options.parts);
  for (std::size_t i = 0; i < counts.size(); ++i)
    SHOAL_CHECK(counts[i] >= 0, "parameter {} has {} elements", i, counts[i]);
  return Planner(counts, options).plan();
}

std::vector<int> plan_turns(std::span<const BucketTiming> buckets, double bytes_per_second,
                            int in_flight) {
  SHOAL_CHECK(bytes_per_second > 0 && in_flight > 0,
              "turns at {} bytes a second with {} buckets in flight; both must be positive",
              bytes_per_second, in_flight);
  const auto places = static_cast<std::size_t>(in_flight);
  std::vector<int> waiting, turns;
  for (std::size_t i = 0; i < buckets.size(); ++i) waiting.push_back(static_cast<int>(i));
  const auto at = [&](int bucket) -> const BucketTiming& {
    return buckets[static_cast<std::size_t>(bucket)];
  };
  std::vector<double> ends;  // end times of the buckets handed over, ascending
  double now = 0;
  while (!waiting.empty()) {
    if (ends.size() >= places) now = std::max(now, ends[ends.size() - places]);
    const auto earliest =
        std::ranges::min_element(waiting, {}, [&](int bucket) { return at(bucket).ready_seconds; });
    now = std::max(now, at(*earliest).ready_seconds);
    auto chosen = waiting.end();
    for (auto it = waiting.begin(); it != waiting.end(); ++it)
      if (at(*it).ready_seconds <= now &&
          (chosen == waiting.end() || at(*it).needed < at(*chosen).needed))
        chosen = it;
    const double start = std::max(now, ends.empty() ? 0 : ends.back());
    ends.push_back(start + static_cast<double>(at(*chosen).bytes) / bytes_per_second);
    turns.push_back(*chosen);
    waiting.erase(chosen);
  }
  return turns;
}

}  // namespace shoal::parallel
