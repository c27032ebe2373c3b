// Ranks started with different options would train different models or wait for each other forever.
// This check reports the differing option before that happens.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::command {

// Every rank calls it with its options by section (OptionSet::dump()) and a description of its
// model. Ranks that differ from rank 0 throw invalid_argument, with the option's name and both
// values. Options that may differ between hosts (paths, threads, progress display) are ignored.
void check_agreement(const World& world, Store& store, const nlohmann::ordered_json& options,
                     const std::string& model, Deadline deadline);

}  // namespace shoal::command
