// Learning rates as pure functions of the step, equal to those of transformers.get_scheduler.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal::nn {

class Schedule {
 public:
  // `kind`: constant, constant_with_warmup, linear, cosine, cosine_with_restarts, polynomial,
  // inverse_sqrt, cosine_with_min_lr, warmup_stable_decay. `options` are Hugging Face's
  // lr_scheduler_kwargs (num_cycles, power, lr_end, timescale, min_lr, ...). Throws
  // invalid_argument on an unknown kind or option, listing the known ones, or on a value out of
  // range.
  Schedule(std::string_view kind, double learning_rate, std::int64_t warmup_steps,
           std::int64_t total_steps, const nlohmann::json& options);

  // Rate of the zero-based update `step`. Also defined beyond total_steps, as in transformers.
  double learning_rate(std::int64_t step) const;
  const std::string& kind() const { return kind_; }
  static std::vector<std::string> kinds();

 private:
  double factor(double step) const;
  double warmup_stable_decay(double step) const;

  std::string kind_;
  double base_, warmup_, total_;
  double num_cycles_ = 0.5, power_ = 1, lr_end_ = 1e-7, timescale_ = 0, min_rate_ = 0;
  double stable_ = 0, decay_ = 0;
  std::string warmup_type_ = "linear", decay_type_ = "cosine";
};

}  // namespace shoal::nn
