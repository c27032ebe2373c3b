#include "shoal/nn/models/decoder/rotary.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/config_reader.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal::nn {
namespace {

using Number = std::optional<double> RopeScaling::*;
constexpr std::pair<const char*, Number> kNumbers[] = {
    {"factor", &RopeScaling::factor},
    {"attention_factor", &RopeScaling::attention_factor},
    {"beta_fast", &RopeScaling::beta_fast},
    {"beta_slow", &RopeScaling::beta_slow},
    {"mscale", &RopeScaling::mscale},
    {"mscale_all_dim", &RopeScaling::mscale_all_dim},
    {"low_freq_factor", &RopeScaling::low_freq_factor},
    {"high_freq_factor", &RopeScaling::high_freq_factor},
    {"partial_rotary_factor", &RopeScaling::partial_rotary_factor}};
constexpr std::string_view kTypes[] = {"default",  "linear", "dynamic",     "yarn",
                                       "longrope", "llama3", "proportional"};

// Turns of a pair in `positions` positions.
double turns(double frequency, std::int64_t positions) {
  return static_cast<double>(positions) * frequency / (2 * std::numbers::pi);
}

// Pairs before `low` turn as they did, pairs from `high` on are stretched, others are blended.
struct YarnBorders {
  double low, high;
  double stretched(std::size_t pair) const {
    return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  }
};

YarnBorders yarn_borders(const RopeScaling& s, double theta, std::int64_t dim,
                         std::int64_t positions) {
  const auto width = static_cast<double>(dim);
  // The pair that turns this often in `positions` positions.
  const auto pair = [&](double often) {
    return width * std::log(turns(1, positions) / often) / (2 * std::log(theta));
  };
  double low = pair(s.beta_fast.value_or(32)), high = pair(s.beta_slow.value_or(1));
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, width - 1);
  return {low, low == high ? high + 0.001 : high};
}

double yarn_scale(const RopeScaling& s, double factor) {
  const auto scale = [&](double weight) {
    return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1;
  };
  const double weight = s.mscale.value_or(0), all = s.mscale_all_dim.value_or(0);
  return s.attention_factor.value_or(weight != 0 && all != 0 ? scale(weight) / scale(all)
                                                             : scale(1));
}

double longrope_scale(const RopeScaling& s, double factor, std::int64_t positions) {
  if (s.attention_factor || factor <= 1) return s.attention_factor.value_or(1);
  return std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(positions)));
}

}  // namespace

void RopeScaling::read(const nlohmann::json& object, std::string_view name, double& rope_theta) {
  const ConfigReader read(object, name);
  read.text("type", rope_type);  // the older name
  read.text("rope_type", rope_type);
  read.number("rope_theta", rope_theta);
  for (const auto& [key, member] : kNumbers)
    if (read.has(key)) read.optional_number(key, this->*member);  // null counts as absent
  read.optional_integer("original_max_position_embeddings", original_max_position_embeddings);
  read.list("short_factor", short_factor);
  read.list("long_factor", long_factor);
  read.boolean("truncate", truncate);
  for (const char* layers : {"full_attention", "sliding_attention"})
    if (read.has(layers))
      read.fail(fmt::format("has rotary positions for {}; all layers have the same here", layers));
}

nlohmann::json RopeScaling::to_json() const {
  if (rope_type == "default") return nullptr;
  nlohmann::json out{{"rope_type", rope_type}};
  for (const auto& [key, member] : kNumbers)
    if (this->*member) out[key] = *(this->*member);
  if (original_max_position_embeddings)
    out["original_max_position_embeddings"] = *original_max_position_embeddings;
  if (!short_factor.empty()) out["short_factor"] = short_factor;
  if (!long_factor.empty()) out["long_factor"] = long_factor;
  if (!truncate) out["truncate"] = false;
  return out;
}

void RopeScaling::check(std::int64_t head_dim) const {
  SHOAL_CHECK(std::ranges::find(kTypes, rope_type) != std::end(kTypes),
              "rope_type '{}' is not supported; {} are", shortened(rope_type),
              fmt::join(kTypes, ", "));
  const auto needs = [&](bool present, std::string_view what) {
    SHOAL_CHECK(present, "rope_type {} needs {}", rope_type, what);
  };
  const bool may_infer = rope_type == "yarn" || rope_type == "longrope";
  needs(factor || may_infer || rope_type == "default" || rope_type == "proportional", "factor");
  for (const auto& [key, member] : kNumbers)
    SHOAL_CHECK(!(this->*member) || (*(this->*member) > 0 && std::isfinite(*(this->*member))),
                "rope_type {} with {} {}", rope_type, key, *(this->*member));
  SHOAL_CHECK(factor.value_or(1) >= 1, "rope_type {} with factor {}, below 1", rope_type, *factor);
  SHOAL_CHECK(original_max_position_embeddings.value_or(2) > 1,
              "rope_type {} with original_max_position_embeddings {}", rope_type,
              *original_max_position_embeddings);
  if (rope_type == "llama3") {
    needs(low_freq_factor && high_freq_factor, "low_freq_factor and high_freq_factor");
    SHOAL_CHECK(*high_freq_factor > *low_freq_factor,
                "rope_type llama3 with low_freq_factor {} and high_freq_factor {}",
                *low_freq_factor, *high_freq_factor);
  }
  if (rope_type == "longrope")
    for (const auto& [key, list] :
         {std::pair{"short_factor", &short_factor}, {"long_factor", &long_factor}}) {
      SHOAL_CHECK(2 * std::ssize(*list) == head_dim,
                  "rope_type longrope with {} numbers in {}, where heads of {} channels need {}",
                  list->size(), key, head_dim, head_dim / 2);
      SHOAL_CHECK(std::ranges::all_of(*list, [](double x) { return x > 0 && std::isfinite(x); }),
                  "rope_type longrope with a number in {} that is not above 0", key);
    }
  const double rotated = partial_rotary_factor.value_or(1);
  SHOAL_CHECK(rotated == 1 || (rope_type == "proportional" && rotated < 1),
              "rope_type {} with partial_rotary_factor {}: only whole heads turn here", rope_type,
              rotated);
}

RotaryAngles RopeScaling::angles(double rope_theta, std::int64_t head_dim,
                                 std::int64_t positions) const {
  const std::int64_t pretrained = original_max_position_embeddings.value_or(positions);
  const double inferred = static_cast<double>(positions) / static_cast<double>(pretrained);
  const bool may_infer = rope_type == "yarn" || rope_type == "longrope";
  const double by = factor.value_or(may_infer ? inferred : 1);
  RotaryAngles out;
  YarnBorders borders{};
  if (rope_type == "yarn") {
    borders = yarn_borders(*this, rope_theta, head_dim, pretrained);
    out.scale = static_cast<float>(yarn_scale(*this, by));
  }
  const auto turning = static_cast<std::int64_t>(partial_rotary_factor.value_or(1) *
                                                 static_cast<double>(head_dim) / 2);
  for (std::int64_t i = 0; i < head_dim; i += 2) {
    const auto pair = static_cast<std::size_t>(i / 2);
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    const auto period = static_cast<float>(std::pow(rope_theta, double{exponent}));
    const float plain = 1.0f / period;
    double kept = 0;  // 1: as in pretraining; 0: divided by the factor
    // Within the model's positions, dynamic changes nothing.
    if (rope_type == "default" || rope_type == "dynamic") {
      out.frequencies.push_back(plain);
      continue;
    }
    if (rope_type == "longrope") {
      const auto divided = [&](double divisor) {
        return 1.0f / (static_cast<float>(divisor) * period);
      };
      out.frequencies.push_back(divided(short_factor[pair]));
      out.long_frequencies.push_back(divided(long_factor[pair]));
      continue;
    }
    if (rope_type == "yarn") kept = 1 - borders.stretched(pair);
    if (rope_type == "llama3")
      kept = std::clamp((turns(static_cast<double>(plain), pretrained) - *low_freq_factor) /
                            (*high_freq_factor - *low_freq_factor),
                        0.0, 1.0);
    const bool turns_at_all = rope_type != "proportional" || i / 2 < turning;
    out.frequencies.push_back(
        turns_at_all ? static_cast<float>(static_cast<double>(plain) * ((1 - kept) / by + kept))
                     : 0.0f);
  }
  if (rope_type == "longrope") {
    out.scale = static_cast<float>(longrope_scale(*this, by, pretrained));
    out.short_positions = pretrained;
  }
  return out;
}

}  // namespace shoal::nn
