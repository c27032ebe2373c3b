#include "shoal/torch/job_ranks.h"

#include <algorithm>
#include <future>
#include <regex>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/ranges.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/numbers.h"

namespace shoal::pytorch {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

constexpr std::size_t kMostListed = 8, kMostQuoted = 400;

std::string key_of(int rank) { return fmt::format("shoal/failed/{}", rank); }

std::int64_t milliseconds_of(system_clock::time_point time) {
  return std::chrono::duration_cast<milliseconds>(time.time_since_epoch()).count();
}

// Whether the group has failed, or this rank's part in it.
bool is_failure(ErrorCode code) {
  return code == ErrorCode::peer_lost || code == ErrorCode::timeout ||
         code == ErrorCode::mismatch || code == ErrorCode::aborted;
}

}  // namespace

JobRanks::JobRanks(int rank, std::vector<int> members, std::shared_ptr<Store> store)
    : members_(std::move(members)), store_(std::move(store)), rank_(in_job(rank)) {}

int JobRanks::in_job(int rank) const {
  return rank >= 0 && rank < std::ssize(members_) ? members_[static_cast<std::size_t>(rank)] : rank;
}

std::vector<int> JobRanks::in_job(const std::vector<int>& ranks) const {
  std::vector<int> all;
  for (const int rank : ranks) all.push_back(in_job(rank));
  return all;
}

// Communicators write "rank 3", "ranks 2, 3", "ranks 2 and 3", "rank(s) 2, 3" and "root 3". A local
// rank is not one of the group's.
std::string JobRanks::in_job(const std::string& text) const {
  if (members_.empty()) return text;
  static const std::regex kNamed(
      R"((local )?\b(?:(?:rank|root) (\d+)|(?:ranks|rank\(s\)) (\d+(?:(?:, | and )\d+)*))\b)");
  static const std::regex kNumber(R"(\d+)");
  std::string renamed;
  auto copied = text.cbegin();
  for (std::sregex_iterator named(text.begin(), text.end(), kNamed), end; named != end; ++named) {
    if ((*named)[1].matched) continue;
    const std::ssub_match& numbers = (*named)[2].matched ? (*named)[2] : (*named)[3];
    for (std::sregex_iterator number(numbers.first, numbers.second, kNumber); number != end;
         ++number) {
      renamed.append(copied, (*number)[0].first);
      const std::string digits = number->str();
      const auto rank = parse_number<int>(digits);  // none: too large to be a rank
      renamed += rank ? std::to_string(in_job(*rank)) : digits;
      copied = (*number)[0].second;
    }
  }
  return renamed.append(copied, text.cend());
}

std::string JobRanks::among() const {
  if (members_.empty()) return {};
  if (members_.size() > kMostListed) return fmt::format("among {} ranks", members_.size());
  return fmt::format("among ranks {}", fmt::join(members_, ", "));
}

Error JobRanks::in_job(const Error& error) const {
  if (members_.empty()) return error;
  Error renamed(error.code(), in_job(error.message()), error.remedy());
  if (error.rank() >= 0) renamed.at_rank(in_job(error.rank()));
  if (error.peer() >= 0) renamed.with_peer(in_job(error.peer()));
  const std::string operation = in_job(error.operation());
  return renamed.in_operation(operation.empty() ? among() : operation + " " + among());
}

std::optional<JobRanks::Statement> JobRanks::statement_of(int rank) const {
  const auto text = store_->try_get(key_of(rank));
  if (!text) return std::nullopt;
  std::istringstream from(*text);
  std::int64_t when = 0;
  Statement found;
  if (!(from >> when >> found.peer) || when < milliseconds_of(made_)) return std::nullopt;
  std::getline(from >> std::ws, found.text);
  found.text.resize(std::min(found.text.size(), kMostQuoted));
  return found;
}

std::string JobRanks::quotes(const Error& failure, double patience) const {
  if (!statement_of(rank_))  // otherwise this failure follows from the one stated
    store_->set(key_of(rank_), fmt::format("{} {} {}", milliseconds_of(system_clock::now()),
                                           failure.peer(), failure.message()));
  for (const auto until = Deadline::in_seconds(patience);;) {
    std::string quoted;
    std::set<int> seen{rank_};
    for (int rank = failure.peer(); rank >= 0 && seen.insert(rank).second;) {
      const auto statement = statement_of(rank);
      if (!statement) break;
      quoted += fmt::format("; rank {} says: {}", rank, statement->text);
      rank = statement->peer;
    }
    if (until.passed()) return quoted;
    std::this_thread::sleep_for(deadlines::kLookAtRanks);
  }
}

Error JobRanks::explained(const Error& error) {
  Error own = in_job(error).at_rank(rank_);
  if (!store_ || store_is_silent_ || !is_failure(own.code())) return own;
  // After a time-out, the rank to blame may itself be about to say which rank it waits for.
  const bool is_first = !has_failed_.exchange(true);
  const double patience = is_first && own.code() == ErrorCode::timeout ? deadlines::kCause : 0;
  // A thread of its own waits for the store, whose server may be the rank that has stopped.
  const auto quoted = std::make_shared<std::promise<std::string>>();
  auto result = quoted->get_future();
  try {
    std::thread([self = shared_from_this(), own, patience, quoted] {
      try {
        quoted->set_value(self->quotes(own, patience));
      } catch (const std::exception& gone) {
        log::debug("rank {} cannot read why other ranks failed: {}", self->rank_, gone.what());
        quoted->set_value("");
      }
    }).detach();
  } catch (const std::system_error& refused) {
    log::debug("rank {} cannot ask why other ranks failed: {}", rank_, refused.what());
    return own;
  }
  if (result.wait_for(std::chrono::duration<double>(deadlines::kStatements)) !=
      std::future_status::ready) {
    store_is_silent_ = true;  // so that further operations do not wait for it in turn
    return own;
  }
  Error explained(own.code(), own.message() + result.get(), own.remedy());
  explained.at_rank(rank_).in_operation(own.operation());
  return own.peer() >= 0 ? explained.with_peer(own.peer()) : explained;
}

}  // namespace shoal::pytorch
