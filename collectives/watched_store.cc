#include "shoal/collectives/watched_store.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "shoal/runtime/base/deadlines.h"

namespace shoal::collectives {
namespace {

constexpr std::string_view kProgress = "shoal/progress";  // counts the reports of all ranks
constexpr auto kFirstNap = std::chrono::milliseconds(1);

Deadline part_of(double seconds, double parts) {
  return Deadline::in_seconds(std::max(seconds, 0.0) / parts);
}

}  // namespace

WatchedStore::WatchedStore(Store& store, const transport::ControlLinks* links, net::RankNames names,
                           std::string operation)
    : ForwardingStore(store),
      links_(links),
      names_(std::move(names)),
      operation_(std::move(operation)) {}

std::string WatchedStore::get(std::string_view key, Deadline deadline) {
  if (links_ == nullptr) return ForwardingStore::get(key, deadline);
  Wait wait(*this, deadline);
  try {
    // Polls the store: a blocking get() would never return if the server is stopped.
    for (auto nap = kFirstNap;; nap = std::min(2 * nap, deadlines::kLookAtRanks)) {
      if (auto value = try_get(key)) return *std::move(value);
      if (wait.is_over()) return ForwardingStore::get(key, deadlines::at_once());
      std::this_thread::sleep_for(nap);
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::peer_lost && error.peer() < 0) throw_cause(error);
    if (error.code() != ErrorCode::timeout) throw;
    wait.give_up(
        fmt::format("waited {:.1f} s for store key '{}'", seconds_since(wait.began_), key));
  }
}

void WatchedStore::set(std::string_view key, std::string_view value) {
  throw_if_server_lost();
  ForwardingStore::set(key, value);
}

std::int64_t WatchedStore::add(std::string_view key, std::int64_t amount) {
  throw_if_server_lost();
  return ForwardingStore::add(key, amount);
}

void WatchedStore::progressed() {
  if (links_ == nullptr) return;
  throw_if_lost();
  const auto now = Clock::now();
  if (now < next_tell_) return;
  if (const std::string silent = silent_ranks(deadlines::seconds()); !silent.empty())
    throw Error(ErrorCode::timeout, silent.substr(2),
                "see whether that process is stopped, or its host overloaded")
        .at_rank(names_.own)
        .in_operation(operation_);
  next_tell_ =
      now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::min(
                deadlines::kTellProgress, deadlines::seconds() / deadlines::kProgressReports)));
  try {
    add(kProgress, 1);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_lost) throw;
    throw_cause(error);
  }
}

void WatchedStore::throw_if_lost() const {
  if (links_ == nullptr) return;
  const auto news = links_->news();
  if (!news) return;
  Blame blame;
  throw error_of(*news, names_, operation_, blame);
}

void WatchedStore::throw_if_server_lost() const {
  const auto news = links_ != nullptr ? links_->news() : std::nullopt;
  if (news && news->rank == 0) throw_if_lost();
}

void WatchedStore::throw_cause(const Error& lost) const {
  const auto until = Deadline::in_seconds(deadlines::kCause);
  while (links_->news() == std::nullopt && !until.passed()) std::this_thread::sleep_for(kFirstNap);
  throw_if_lost();
  throw Error(lost);
}

WatchedStore::Wait::Wait(WatchedStore& ranks, Deadline deadline)
    : ranks_(ranks),
      seconds_(deadline.seconds_left()),
      deadline_(deadline),
      next_look_(part_of(seconds_, deadlines::kProgressLooks)) {}

bool WatchedStore::Wait::is_over() {
  ranks_.throw_if_lost();
  if (next_look_.passed() && ranks_.links_ != nullptr) {
    next_look_ = part_of(seconds_, deadlines::kProgressLooks);
    if (!ranks_.silent_ranks(seconds_).empty()) return true;
    if (auto now = ranks_.try_get(kProgress); now != progress_) {
      progress_ = std::move(now);
      deadline_ = Deadline::in_seconds(seconds_);
    }
  }
  return deadline_.passed();
}

void WatchedStore::Wait::give_up(const std::string& what) const {
  const std::string silent = ranks_.silent_ranks(0);
  throw Error(ErrorCode::timeout,
              fmt::format("{}, and no rank made progress for {:.1f} s{}", what, seconds_, silent),
              silent.empty() ? "look at the logs of the other ranks, or raise SHOAL_DEADLINE_S"
                             : "see whether that process is stopped, or its host overloaded")
      .at_rank(ranks_.names_.own)
      .in_operation(ranks_.operation_);
}

std::string WatchedStore::silent_ranks(double seconds) const {
  std::string text;
  for (int rank = 0; links_ != nullptr && rank < names_.size; ++rank)
    if (const auto silence = links_->silent_seconds(rank); silence && *silence >= seconds)
      text += fmt::format("; no heartbeat of {} for {:.0f} s", names_.named(rank), *silence);
  return text;
}

}  // namespace shoal::collectives
