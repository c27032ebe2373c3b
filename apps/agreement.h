// Ranks that were started with other options would train another model, or wait for each other in
// vain: which option it is, is said before that.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::app {

// Every rank calls it with its options by section (OptionSet::dump()) and what its model is. Where
// they differ from rank 0's, invalid_argument with the name and both values, on the ranks where
// they do. What may differ from host to host (paths, threads, how progress is shown) is passed
// over.
void check_agreement(const World& world, Store& store, const nlohmann::ordered_json& options,
                     const std::string& model, Deadline deadline);

}  // namespace shoal::app
