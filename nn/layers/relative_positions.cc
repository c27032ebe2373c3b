#include "shoal/nn/layers/relative_positions.h"

#include <algorithm>
#include <cmath>

#include "shoal/kernels/kernels.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

RelativePositions::RelativePositions(const RelativePositionsConfig& config)
    : config_(config),
      weight_(add_parameter("weight", {config.buckets, config.heads},
                            {Initializer::Kind::normal, config.std})) {
  const std::int64_t exact = config.buckets / (config.bidirectional ? 4 : 2);
  SHOAL_CHECK(
      exact > 0 && config.max_distance > exact,
      "relative positions up to {} in {} buckets; at least {} buckets, of which {} hold one "
      "distance each, reach further",
      config.max_distance, config.buckets, config.bidirectional ? 4 : 2, exact);
}

// The logarithm is taken in f32, as transformers does.
std::int64_t RelativePositions::bucket(std::int64_t distance) const {
  const std::int64_t buckets = config_.bidirectional ? config_.buckets / 2 : config_.buckets,
                     exact = buckets / 2;
  const std::int64_t first = config_.bidirectional && distance > 0 ? buckets : 0;
  distance = config_.bidirectional ? std::abs(distance) : std::max<std::int64_t>(-distance, 0);
  if (distance < exact) return first + distance;
  const auto step = static_cast<float>(
      std::log(static_cast<double>(config_.max_distance) / static_cast<double>(exact)));
  const float share = std::log(static_cast<float>(distance) / static_cast<float>(exact)) / step;
  const auto wide = static_cast<std::int64_t>(share * static_cast<float>(buckets - exact));
  return first + std::min(exact + wide, buckets - 1);
}

const Tensor& RelativePositions::table(const Context& context, std::int64_t positions) {
  const Device device = context.kernels().device();
  if (!tables_.empty() && tables_.back().device() == device &&
      tables_.back().count() >= 2 * positions - 1)
    return tables_.back();
  if (!memory_ || memory_->device() != device) {
    tables_.clear();
    memory_ = make_device_memory(device);
  }
  // Twice the positions, so that growing sequences seldom need a new table.
  const std::int64_t reach = std::max<std::int64_t>(2 * positions, 64);
  std::vector<std::int32_t> buckets;
  for (std::int64_t distance = 1 - reach; distance < reach; ++distance)
    buckets.push_back(static_cast<std::int32_t>(bucket(distance)));
  Tensor made = Tensor::empty({std::ssize(buckets)}, DType::i32, *memory_, MemoryTag::parameters,
                              context.stream);
  device_backend(context.stream.device.type)
      .copy(made.view().data, buckets.data(), made.bytes(), context.stream);
  tables_.push_back(std::move(made));
  return tables_.back();
}

Value RelativePositions::bias(Context& context, std::int64_t queries, std::int64_t keys) {
  const Tensor& buckets = table(context, std::max(queries, keys));
  const std::int64_t first = (buckets.count() + 1) / 2 - keys, count = queries + keys - 1;
  const Tensor wanted = buckets.narrowed(0, first, count).reshaped({1, count});
  return transpose_samples(context, embedding(context, wanted, *weight_));
}

}  // namespace shoal::nn
