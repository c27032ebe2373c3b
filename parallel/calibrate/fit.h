// Refines a machine's file by a measured step, so that the step is predicted as it was. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include "shoal/parallel/calibrate/traced_step.h"

namespace shoal::parallel {

// Adds "traced", "software" and the efficiencies of products to a file that has the bandwidth and
// the times of single products: what the traced step took beyond them, part by part.
nlohmann::ordered_json fit_to_step(nlohmann::ordered_json machine, const TracedModel& traced,
                                   DType dtype);

// Scales the times of a machine's file so that this run is predicted as it was measured: products,
// attention and passes by forward and backward, the update's bandwidth by the optimizer, sums of
// gradients by the time that ranks waited for them. `predicted` and `measured` have the names of
// metrics.jsonl ("forward_seconds"); a phase that one of them lacks stays as it is.
nlohmann::ordered_json fit_machine(nlohmann::ordered_json machine, const nlohmann::json& predicted,
                                   const nlohmann::json& measured);

}  // namespace shoal::parallel
