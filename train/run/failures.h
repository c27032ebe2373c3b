// Reports each failure once per job and gives all ranks the same exit status.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/exit_status.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal {

// Two texts that the first rank of a host determined for all ranks of that host.
struct HostAnswer {
  int node = -1;  // number of the host; -1: this rank has no answer
  std::string first, second;
};
std::string as_text(const HostAnswer& answer);
std::string as_text(const Error& error);  // the rank failed

// Exchanges these texts between all ranks; "" comes from ranks without an answer. Throws the
// failure of the lowest rank that failed, or corrupt_data naming the rank whose text is unreadable.
std::vector<HostAnswer> exchange_answers(const World& world, Store& store, const std::string& label,
                                         const std::string& own, Deadline deadline);

// Exchanges the ranks' failures through the store, which works even if ranks have ended. Every rank
// calls it, with its failure or nullopt. Returns once all have, or at the deadline.
//
// Several ranks may have the same failure, or one with the same remedy (a full disk). Only the
// lowest of them reports: one line on standard error, with the number of the others. A rank that
// only noticed another's failure (aborted, peer_lost) reports if no rank found a cause. `report`
// takes a rank's line; by default it is `shoal train`'s report_error().
//
// Returns the exit status of all ranks: 0, or that of the failure (runtime/base/exit_status.h).
// With `training_began` a wrong option is kFailed. `label` must be different in each call. A rank
// for which `is_gone` returns true is not waited for and counts as not failed.
int tell_failures(const World& world, Store& store, const std::string& label,
                  const std::optional<Error>& own, Deadline deadline,
                  const std::function<bool(int rank)>& is_gone = {}, bool training_began = false,
                  const std::function<void(const std::string& line)>& report = {});

}  // namespace shoal
