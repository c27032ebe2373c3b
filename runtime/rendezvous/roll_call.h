// A roll call: each rank of a group stores a value and waits for the values of all others.
//
//   const RollCall roll = call_roll(store, "hosts", rank, size, "node1", Deadline::in_seconds(60));
//   if (!roll.missing.empty()) give_up(roll.missing);
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal {

struct RollCall {
  std::vector<std::string> values;  // in rank order, unless ranks are missing
  std::vector<int> missing;
};

// Stores `value` as `label`/rank; `label` must be new for each call. Calls `see` with each value
// that is there, in rank order; it may throw.
//
// At the deadline it lists all ranks that have not come. It tells those whose deadline is later,
// and they return the same list at once: the store may end with the rank that serves it, and they
// would never learn who was missing.
RollCall call_roll(Store& store, std::string_view label, int rank, int size, std::string_view value,
                   Deadline deadline,
                   const std::function<void(int rank, std::string_view value)>& see = {});

}  // namespace shoal
