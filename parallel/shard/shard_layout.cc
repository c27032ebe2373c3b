#include "shoal/parallel/shard/shard_layout.h"

#include <limits>
#include <unordered_map>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using Parameters = std::span<const std::vector<nn::Parameter*>>;

// Converts lists of parameters to indices; skips parameters that are not in the layout.
std::vector<std::vector<int>> indices_of(const ShardLayout& layout, Parameters lists) {
  std::unordered_map<const nn::Parameter*, int> index_of;
  for (const nn::Parameter* parameter : layout.parameters)
    index_of.emplace(parameter, static_cast<int>(index_of.size()));
  std::vector<std::vector<int>> indices(lists.size());
  for (std::size_t i = 0; i < lists.size(); ++i)
    for (const nn::Parameter* parameter : lists[i])
      if (const auto found = index_of.find(parameter); found != index_of.end())
        indices[i].push_back(found->second);
  return indices;
}

ShardPlan plan_of(const ShardLayout& layout, Parameters units,
                  const std::vector<std::vector<int>>& apart) {
  std::vector<std::int64_t> counts;
  for (const nn::Parameter* parameter : layout.parameters)
    counts.push_back(parameter->shape().count());
  const ShardPlanOptions options = layout.plan_options();
  if (layout.options.level < 3) return plan_shards(counts, options, apart);
  const std::int64_t threshold = layout.groups.shards() == 1
                                     ? std::numeric_limits<std::int64_t>::max()
                                     : layout.options.persistence_threshold;
  return plan_unit_shards(counts, indices_of(layout, units), threshold, options, apart);
}

}  // namespace

ShardPlanOptions ShardLayout::plan_options() const {
  return {.shards = groups.shards(),
          .bucket_elements = options.bucket_elements,
          .first_bucket_elements = options.first_bucket_elements,
          .cut = options.level == 1};
}

ShardLayout make_shard_layout(std::span<nn::Parameter* const> parameters, const ShardGroups& groups,
                              const ShardingOptions& options, Parameters units, Parameters apart) {
  SHOAL_CHECK(groups.shard != nullptr, "sharding without a shard group");
  SHOAL_CHECK(options.level >= 1 && options.level <= 3,
              "sharding level {}; 1 shards optimizer state, 2 gradients too, 3 parameters too "
              "(a Reducer sums gradients where nothing is sharded)",
              options.level);
  SHOAL_CHECK(
      options.level < 3 || !units.empty(),
      "sharding parameters (level 3) needs to know which unit reads what; give the units of "
      "the Chain");
  SHOAL_CHECK(options.max_live_parameters > 0,
              "sdp_max_live_parameters = {}; give 1 or more elements", options.max_live_parameters);
  SHOAL_CHECK(options.buckets_in_flight > 0, "{} gradient buckets in flight; give 1 or more",
              options.buckets_in_flight);
  SHOAL_CHECK(options.persistence_threshold >= 0,
              "sdp_param_persistence_threshold = {}; give 0 or more elements",
              options.persistence_threshold);
  ShardLayout layout;
  layout.options = options;
  layout.groups = groups;
  for (nn::Parameter* parameter : parameters)
    (parameter->trainable() ? layout.parameters : layout.frozen).push_back(parameter);
  const std::vector<std::vector<int>> sets = indices_of(layout, apart);
  layout.plan = plan_of(layout, units, sets);
  layout.segments = shard_segments(layout.plan, groups.rank());
  layout.buckets_of.resize(layout.parameters.size());
  for (int b = 0; b < layout.plan.buckets(); ++b)
    for (const GradientBucket::Entry& entry : layout.plan.bucket(b).entries)
      layout.buckets_of[static_cast<std::size_t>(entry.parameter)].push_back(b);
  layout.set_of.assign(static_cast<std::size_t>(layout.plan.buckets()), -1);
  for (std::size_t set = 0; set < sets.size(); ++set)
    for (const int parameter : sets[set])
      for (const int b : layout.buckets_of[static_cast<std::size_t>(parameter)])
        layout.set_of[static_cast<std::size_t>(b)] = static_cast<int>(set);
  return layout;
}

}  // namespace shoal::parallel
