#include "shoal/parallel/predict/spot/trace.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::parallel {

using nlohmann::json;

SpotTrace read_spot_trace(const std::string& path) {
  constexpr std::size_t kMostSamples = 10'000'000;
  const json file = read_json_file(path);
  const JsonFields fields(file, path);
  SpotTrace trace;
  trace.name = path;
  trace.gap = need_field<double>(need_field<json>(file, "metadata", path), "gap_seconds",
                                 path + ": metadata");
  SHOAL_CHECK(trace.gap > 0 && trace.gap <= 86400,
              "{} has gap_seconds {}, which is not above 0 "
              "and at most a day",
              path, trace.gap);
  trace.instances = need_field<std::vector<int>>(file, "data", path);
  const std::size_t samples = trace.instances.size();
  SHOAL_CHECK(samples >= 1 && samples <= kMostSamples,
              "{} has {} samples, where 1 to {} are "
              "expected",
              path, samples, kMostSamples);
  const auto negative = std::ranges::find_if(trace.instances, [](int n) { return n < 0; });
  SHOAL_CHECK(negative == trace.instances.end(), "{}: sample {} has {} instances", path,
              negative - trace.instances.begin(), *negative);
  trace.prices = field_or<std::vector<double>>(file, "prices", {}, path);
  SHOAL_CHECK(trace.prices.empty() || trace.prices.size() == samples,
              "{} has {} prices for {} samples", path, trace.prices.size(), samples);
  const auto wrong = std::ranges::find_if(trace.prices, [](double p) { return !(p >= 0); });
  SHOAL_CHECK(wrong == trace.prices.end(), "{}: sample {} has the price {}", path,
              wrong - trace.prices.begin(), *wrong);
  return trace;
}

SpotAvailability availability(const SpotTrace& trace, int nodes) {
  SpotAvailability all;
  std::size_t there = 0;
  bool before = false;
  for (const int instances : trace.instances) {
    const bool now = instances >= nodes;
    there += now ? 1 : 0;
    all.interruptions += before && !now ? 1 : 0;
    before = now;
  }
  const auto samples = static_cast<double>(trace.instances.size());
  all.share = static_cast<double>(there) / samples;
  if (all.interruptions > 0)
    all.between_interruptions =
        trace.gap * static_cast<double>(there) / static_cast<double>(all.interruptions);
  return all;
}

double checkpoint_interval(double checkpoint, double between) {
  if (checkpoint == 0) return 0;
  const double share = checkpoint / (2 * between);
  const double interval =
      share < 1 ? std::sqrt(2 * checkpoint * between) * (1 + std::sqrt(share) / 3 + share / 9) -
                      checkpoint
                : between;
  return std::max(1.0, std::round(interval));
}

}  // namespace shoal::parallel
