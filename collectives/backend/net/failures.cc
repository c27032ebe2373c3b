// The texts of a NetEngine's failures: which ranks are to blame and where to look.
#include <algorithm>
#include <chrono>
#include <thread>

#include <fmt/ranges.h>

#include "shoal/collectives/backend/net/net_engine.h"
#include "shoal/runtime/base/deadlines.h"

namespace shoal::collectives::net {
namespace {

using std::chrono::milliseconds;

}  // namespace

// A connection is often lost because its rank ended after another rank's fault, so news of the
// control links takes precedence.
Error NetEngine::with_cause(const Error& error) {
  if (error.code() == ErrorCode::timeout) return with_silent_ranks(error);
  if (!control_ || (error.code() != ErrorCode::peer_lost && error.code() != ErrorCode::io &&
                    error.code() != ErrorCode::aborted))
    return error;
  const auto until = Deadline::in_seconds(deadlines::kCause);
  while (!control_->news() && !until.passed()) std::this_thread::sleep_for(milliseconds(1));
  const auto news = control_->news();
  if (!news) return error;
  // Names the operation that a caller waits for, not the part of it that met the error.
  std::string name = error.operation();
  if (awaited_)
    name = awaited_->name();
  else if (!tasks_.empty())
    name = tasks_.front()->name();
  for (const auto& channel : active_)
    if (name.empty() && !channel->running.empty()) name = channel->running.front()->name();
  return error_of(*news, names_, name, blame_);
}

Error NetEngine::timeout_error(const InFlight& what, double waited) {
  // An earlier operation may block this one.
  std::vector<int> peers;
  const InFlight* blocks = &what;
  std::string missing = what.missing(peers), name = what.name();
  const auto look_at = [&](const InFlight& other) {
    if (!peers.empty() || other.done()) return;
    blocks = &other;
    name = other.name();
    missing = other.missing(peers);
  };
  for (const auto& channel : active_)
    if (!channel->running.empty()) look_at(*channel->running.front());
  for (const auto& task : tasks_) look_at(*task);
  std::ranges::sort(peers);
  Error error(ErrorCode::timeout,
              fmt::format("{} did not finish within {:.1f} s; missing: rank(s) {}: {}", name,
                          waited, fmt::join(peers, ", "), missing),
              "see what those ranks do, or raise SHOAL_DEADLINE_S");
  error.at_rank(rank_).in_operation(what.name());
  if (!peers.empty()) error.with_peer(peers.front());
  return with_silent_ranks(with_late_ranks(*blocks, error));
}

// A missing rank may itself wait for a rank that has not made the call.
Error NetEngine::with_late_ranks(const InFlight& what, const Error& timeout) {
  if (!control_ || what.key.group != kWorldGroup) return timeout;
  const auto late = control_->behind(what.number);
  if (late.empty()) return timeout;
  return Error(timeout.code(),
               fmt::format("{}; rank(s) {} did not call it", timeout.message(),
                           fmt::join(late, ", ")),
               timeout.remedy())
      .at_rank(rank_)
      .with_peer(late.front())
      .in_operation(timeout.operation());
}

// A missing rank may itself wait for a rank that does nothing at all. That silent rank is to blame.
Error NetEngine::with_silent_ranks(const Error& timeout) {
  std::string text = timeout.message();
  for (int rank = 0; control_ && rank < size_; ++rank)
    if (const auto seconds = control_->silent_seconds(rank)) {
      text += fmt::format("; no heartbeat of {} for {:.0f} s", names_.named(rank), *seconds);
      blame_.ranks.push_back(rank);
    }
  if (blame_.ranks.empty()) return timeout;
  blame_.kind = Blame::Kind::silent;
  return Error(timeout.code(), text, "see whether that process is stopped, or its host overloaded")
      .at_rank(rank_)
      .with_peer(blame_.ranks.front())
      .in_operation(timeout.operation());
}

}  // namespace shoal::collectives::net
