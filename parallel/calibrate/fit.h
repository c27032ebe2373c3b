// Refines a machine's file by a run that was predicted with it. Pure.
#pragma once

#include <nlohmann/json.hpp>

namespace shoal::parallel {

// Scales the times of a machine's file so that this run is predicted as it was measured: products,
// attention and passes by forward and backward, the update's bandwidth by the optimizer, sums of
// gradients by the time that ranks waited for them. `predicted` and `measured` have the names of
// metrics.jsonl ("forward_seconds"); a phase that one of them lacks stays as it is.
nlohmann::ordered_json fit_machine(nlohmann::ordered_json machine, const nlohmann::json& predicted,
                                   const nlohmann::json& measured);

}  // namespace shoal::parallel
