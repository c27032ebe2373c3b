// A step's predicted time and memory beside the measured ones. Pure.
//
// Both are objects with the names of a record of metrics.jsonl: "step_seconds", the seconds of its
// phases, and "memory_peak_by_tag". A prediction has the tags that can be predicted.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace shoal {

struct ForecastPart {
  std::string name;                    // "step", "forward", "memory", "activations", ...
  double predicted = 0, measured = 0;  // seconds or bytes
  bool bytes = false;
  bool whole = false;  // the step, or all predicted memory; the parts of a whole follow it

  double error() const { return predicted / measured - 1; }  // of `measured` above 0
};

// The parts that both have, and what they leave of the step ("other"). The memory that is measured
// is the sum of the tags that are predicted.
std::vector<ForecastPart> forecast_parts(const nlohmann::json& predicted,
                                         const nlohmann::json& measured);

// A sentence for each whole whose prediction is more than a tenth off. It names the part that
// differs most.
std::vector<std::string> forecast_misses(const std::vector<ForecastPart>& parts);

// Adds to a record of metrics.jsonl what `predicted` expected: "predicted_step_seconds",
// "predicted_memory_bytes", and the sentences, which it returns, as "predictions_missed".
std::vector<std::string> add_forecast(const nlohmann::json& predicted,
                                      nlohmann::ordered_json& record);

// "12.3 ms" or "1.46 GiB".
std::string format_part(const ForecastPart& part, double value);

}  // namespace shoal
