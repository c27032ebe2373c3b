// What ranks find wrong is said once, and ends all of them with one exit status.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::app {

inline constexpr int kFailed = 1, kWrongOptions = 2;

// Of what was caught; out of memory and what is no Error become one.
Error error_of(const std::exception& caught);

// For what one rank finds out on behalf of others, through exchange(): the failure as text, and
// from any text the failure that it is, if it is one.
std::string as_text(const Error& error);
std::optional<Error> failure_in(const std::string& text);

// Ranks tell each other what they found, through the store: a rank may have ended in the middle of
// anything. Every rank calls it with its own failure, or none; returns once all have, or the
// deadline has passed. Of those that found the same, or what the same remedy helps (a full disk),
// the lowest says so, on standard error, and how many others there are; who only noticed that
// others fail (aborted, peer_lost) says so where nobody found a cause. Returns the
// exit status of all ranks: 0 without failures, else kWrongOptions where what was found is an
// argument that cannot be. `label` is new for each call.
int tell_failures(const World& world, Store& store, const std::string& label,
                  const std::optional<Error>& own, Deadline deadline);

}  // namespace shoal::app
