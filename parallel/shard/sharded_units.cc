#include "shoal/parallel/shard/sharded_units.h"

#include <algorithm>
#include <span>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {

std::vector<std::vector<nn::Parameter*>> parameters_of_units(const nn::Chain& chain) {
  std::vector<std::vector<nn::Parameter*>> units;
  for (int unit = 0; unit < chain.units(); ++unit) units.push_back(chain.unit_parameters(unit));
  return units;
}

ShardedUnits::ShardedUnits(const nn::Chain& chain, ShardedValues& values) : values_(values) {
  const ShardLayout& layout = values.layout();
  for (const auto& unit : parameters_of_units(chain)) {
    std::vector<int> all;
    for (std::size_t i = 0; i < layout.parameters.size(); ++i)
      if (std::ranges::find(unit, layout.parameters[i]) != unit.end())
        all.insert(all.end(), layout.buckets_of[i].begin(), layout.buckets_of[i].end());
    std::ranges::sort(all);
    all.erase(std::unique(all.begin(), all.end()), all.end());
    buckets_.push_back(std::move(all));
  }
}

void ShardedUnits::bring(int bucket) {
  if (values_.present(bucket)) return;
  values_.gather(bucket);
  ++statistics_.gathers;
  statistics_.most_live_elements =
      std::max(statistics_.most_live_elements, values_.live_elements());
}

// The order of gathers depends only on the calls, so it is the same on every rank.
void ShardedUnits::begin(int unit, int next) {
  const ShardPlan& plan = values_.layout().plan;
  const std::vector<int>& needed = buckets(unit);
  const std::span<const int> ahead =
      next >= 0 ? std::span<const int>(buckets(next)) : std::span<const int>();
  for (int b = 0; b < plan.unit_buckets; ++b)
    if (values_.pins(b) == 0 && std::ranges::find(needed, b) == needed.end() &&
        std::ranges::find(ahead, b) == ahead.end())
      values_.release(b);
  for (const int b : needed) {
    bring(b);
    values_.pin(b);
  }
  for (const int b : ahead) {
    const std::int64_t elements = plan.bucket(b).end - plan.bucket(b).begin;
    if (values_.present(b) ||
        values_.live_elements() + elements > values_.layout().options.max_live_parameters)
      continue;
    bring(b);
    ++statistics_.prefetched;
  }
  for (const int b : needed) values_.wait_for_bucket(b);
}

void ShardedUnits::end(int unit) noexcept {
  for (const int b : buckets(unit)) values_.unpin(b);
}

void ShardedUnits::drop_idle() {
  for (int b = 0; b < values_.layout().plan.unit_buckets; ++b)
    if (values_.pins(b) == 0) values_.release(b);
}

}  // namespace shoal::parallel
