#include "shoal/nn/optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numbers>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::nn {
namespace {

constexpr double kPi = std::numbers::pi;

// The lr_scheduler_kwargs that each schedule accepts.
const std::map<std::string, std::vector<std::string>, std::less<>>& options_of_kinds() {
  static const std::map<std::string, std::vector<std::string>, std::less<>> table{
      {"constant", {}},
      {"constant_with_warmup", {}},
      {"linear", {}},
      {"cosine", {"num_cycles"}},
      {"cosine_with_restarts", {"num_cycles"}},
      {"polynomial", {"power", "lr_end"}},
      {"inverse_sqrt", {"timescale"}},
      {"cosine_with_min_lr", {"num_cycles", "min_lr", "min_lr_rate"}},
      {"warmup_stable_decay",
       {"num_stable_steps", "num_decay_steps", "warmup_type", "decay_type", "min_lr_ratio",
        "num_cycles"}}};
  return table;
}

double number(const nlohmann::json& options, const char* name, double fallback) {
  const nlohmann::json* const value = find_field(options, name);
  if (value == nullptr) return fallback;
  SHOAL_CHECK(value->is_number(), "lr_scheduler_kwargs.{} is {}, not a number", name,
              value->dump());
  return value->get<double>();
}

std::string shape_name(const nlohmann::json& options, const char* name, std::string fallback) {
  const nlohmann::json* const value = find_field(options, name);
  if (value == nullptr) return fallback;
  constexpr std::array kShapes{"linear", "cosine", "1-sqrt"};
  SHOAL_CHECK(value->is_string() && std::ranges::count(kShapes, value->get<std::string>()) == 1,
              "lr_scheduler_kwargs.{} is {}; it is linear, cosine or 1-sqrt", name, value->dump());
  return value->get<std::string>();
}

}  // namespace

std::vector<std::string> Schedule::kinds() {
  std::vector<std::string> names;
  for (const auto& [name, options] : options_of_kinds()) names.push_back(name);
  return names;
}

Schedule::Schedule(std::string_view kind, double learning_rate, std::int64_t warmup_steps,
                   std::int64_t total_steps, const nlohmann::json& options)
    : kind_(kind),
      base_(learning_rate),
      warmup_(static_cast<double>(warmup_steps)),
      total_(static_cast<double>(total_steps)) {
  const auto known = options_of_kinds().find(kind);
  SHOAL_CHECK(known != options_of_kinds().end(), "'{}' is not a schedule; there are {}", kind,
              fmt::join(kinds(), ", "));
  SHOAL_CHECK(warmup_steps >= 0, "{} warmup steps", warmup_steps);
  for (const auto& [name, value] : options.items())
    SHOAL_CHECK(
        std::ranges::count(known->second, name) == 1,
        "lr_scheduler_kwargs.{} means nothing to the schedule {}; it takes: {}", name, kind,
        known->second.empty() ? "nothing" : fmt::format("{}", fmt::join(known->second, ", ")));

  num_cycles_ = number(options, "num_cycles", kind == "cosine_with_restarts" ? 1 : 0.5);
  power_ = number(options, "power", 1);
  lr_end_ = number(options, "lr_end", 1e-7);
  timescale_ = number(options, "timescale", warmup_ > 0 ? warmup_ : 10'000);
  SHOAL_CHECK(timescale_ > 0, "lr_scheduler_kwargs.timescale is {}; it is above 0", timescale_);
  SHOAL_CHECK(kind != "polynomial" || base_ > lr_end_,
              "learning_rate {} must be above lr_scheduler_kwargs.lr_end {}", base_, lr_end_);
  if (kind == "cosine_with_min_lr") {
    const bool has_least = find_field(options, "min_lr") != nullptr;
    SHOAL_CHECK(
        has_least != (find_field(options, "min_lr_rate") != nullptr),
        "cosine_with_min_lr takes exactly one of lr_scheduler_kwargs.min_lr and min_lr_rate");
    SHOAL_CHECK(!has_least || base_ > 0,
                "learning_rate is {}; lr_scheduler_kwargs.min_lr is a part of one above 0", base_);
    min_rate_ =
        has_least ? number(options, "min_lr", 0) / base_ : number(options, "min_lr_rate", 0);
  }
  if (kind == "warmup_stable_decay") {
    SHOAL_CHECK(find_field(options, "num_decay_steps") != nullptr,
                "warmup_stable_decay needs lr_scheduler_kwargs.num_decay_steps");
    decay_ = number(options, "num_decay_steps", 0);
    stable_ = number(options, "num_stable_steps", total_ - warmup_ - decay_);
    min_rate_ = number(options, "min_lr_ratio", 0);
    warmup_type_ = shape_name(options, "warmup_type", "linear");
    decay_type_ = shape_name(options, "decay_type", "cosine");
    SHOAL_CHECK(stable_ >= 0, "{} warmup and {} decay steps do not fit {} steps", warmup_, decay_,
                total_);
  }
}

double Schedule::learning_rate(std::int64_t step) const {
  return base_ * factor(static_cast<double>(step));
}

double Schedule::factor(double step) const {
  if (kind_ == "constant") return 1;
  if (kind_ == "warmup_stable_decay") return warmup_stable_decay(step);
  if (step < warmup_) return step / std::max(1.0, warmup_);
  if (kind_ == "constant_with_warmup") return 1;
  const double rest = std::max(1.0, total_ - warmup_);
  const double progress = (step - warmup_) / rest;
  if (kind_ == "linear") return std::max(0.0, (total_ - step) / rest);
  if (kind_ == "cosine")
    return std::max(0.0, 0.5 * (1 + std::cos(kPi * num_cycles_ * 2 * progress)));
  if (kind_ == "cosine_with_min_lr") {
    const double cosine = 0.5 * (1 + std::cos(kPi * num_cycles_ * 2 * progress));
    return std::max(0.0, cosine * (1 - min_rate_) + min_rate_);
  }
  if (kind_ == "cosine_with_restarts") {
    if (progress >= 1) return 0;
    return std::max(0.0, 0.5 * (1 + std::cos(kPi * std::fmod(num_cycles_ * progress, 1.0))));
  }
  if (kind_ == "polynomial") {
    if (step >= total_) return lr_end_ / base_;
    const double remaining = 1 - (step - warmup_) / (total_ - warmup_);
    return ((base_ - lr_end_) * std::pow(remaining, power_) + lr_end_) / base_;
  }
  // inverse_sqrt
  return 1 / std::sqrt((step + timescale_ - warmup_) / timescale_);
}

double Schedule::warmup_stable_decay(double step) const {
  const auto floored = [this](double factor) {
    return std::max(0.0, factor * (1 - min_rate_) + min_rate_);
  };
  if (step < warmup_) {
    const double progress = step / std::max(1.0, warmup_);
    if (warmup_type_ == "cosine") return floored(0.5 * (1 - std::cos(kPi * progress)));
    if (warmup_type_ == "1-sqrt") return floored(1 - std::sqrt(1 - progress));
    return floored(progress);
  }
  if (step < warmup_ + stable_) return 1;
  if (step < warmup_ + stable_ + decay_) {
    const double progress = (step - warmup_ - stable_) / std::max(1.0, decay_);
    if (decay_type_ == "linear") return floored(1 - progress);
    if (decay_type_ == "1-sqrt") return floored(1 - std::sqrt(progress));
    return floored(0.5 * (1 + std::cos(kPi * num_cycles_ * 2 * progress)));
  }
  return min_rate_;
}

}  // namespace shoal::nn
