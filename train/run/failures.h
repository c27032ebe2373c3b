// What ranks find wrong is said once, and ends all of them with one exit status.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal {

inline constexpr int kFailed = 1, kWrongOptions = 2;

// Of what was caught; out of memory and what is no Error become one.
Error error_of(const std::exception& caught);

// What the first rank of a host finds out on behalf of that host's others: two texts.
struct HostAnswer {
  int node = -1;  // the host's; -1: this rank has none
  std::string first, second;
};
std::string as_text(const HostAnswer& answer);
std::string as_text(const Error& error);  // it failed

// exchange() of such texts, "" from ranks that have none. Throws the failure of the lowest rank
// that failed; corrupt_data naming the rank whose text is unreadable.
std::vector<HostAnswer> exchange_answers(const World& world, Store& store, const std::string& label,
                                         const std::string& own, Deadline deadline);

// Ranks tell each other what they found, through the store: a rank may have ended in the middle of
// anything. Every rank calls it with its own failure, or none; returns once all have, or the
// deadline has passed. Of those that found the same, or what the same remedy helps (a full disk),
// the lowest says so, on standard error, and how many others there are; who only noticed that
// others fail (aborted, peer_lost) says so where nobody found a cause. Returns the
// exit status of all ranks: 0 without failures, else kWrongOptions where what was found is an
// argument that cannot be. `label` is new for each call; lines begin with `program`. A rank that
// `is_gone`, which is not waited for, has not failed. `training_began`: the options were right, so
// every failure is kFailed.
int tell_failures(const World& world, Store& store, const std::string& label,
                  const std::optional<Error>& own, Deadline deadline,
                  const std::function<bool(int rank)>& is_gone = {}, bool training_began = false,
                  const std::string& program = "shoal train");

}  // namespace shoal
