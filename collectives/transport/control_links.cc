#include "shoal/collectives/transport/control_links.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shoal/collectives/transport/control_connection.h"
#include "shoal/collectives/transport/control_meeting.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::transport {
namespace {

using control::Connection;
using control::Kind;
using control::kMostText;
using control::Message;
using control::send;

constexpr double kMostSilence = 1e6;    // the longest silence in seconds that rank 0 may report
constexpr std::uint32_t kCalls = 1024;  // rank 0 remembers so many; ranks are at most 256 apart
constexpr std::string_view kCallsFollow = "calls";  // in heartbeats of rank 0

// The number of a rank's newest call, which wraps, or kNoCall.
using Newest = std::int64_t;
constexpr Newest kNoCall = -1;
bool is_before(Newest first, Newest second) {
  if (first == kNoCall || second == kNoCall) return first == kNoCall && second != kNoCall;
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(first - second)) < 0;
}

}  // namespace

class ControlLinks::Impl {
 public:
  Impl(int rank, int size, Store& store, const std::string& prefix, Deadline deadline,
       double unreachable_seconds)
      : rank_(rank),
        size_(size),
        limit_(unreachable_seconds),
        beat_(std::clamp(unreachable_seconds / 5, 0.05, deadlines::kLongestBeat)),
        left_(static_cast<std::size_t>(size)),
        heard_(static_cast<std::size_t>(size)),
        calls_(rank == 0 ? kCalls : 1),
        newest_of_(static_cast<std::size_t>(size),
                   rank == 0 ? std::optional(kNoCall) : std::nullopt),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) throw_error(ErrorCode::io, "eventfd: {}", std::strerror(errno));
    peers_ = control::meet({rank, size, store, prefix, deadline, limit_});
    std::ranges::fill(heard_, Clock::now());
    thread_ = std::thread([this] {
      run();
      const auto last = take_self();  // destroys the links here if only this thread uses them
    });
  }

  ~Impl() {
    stopping_.store(true);
    ring();
    if (thread_.joinable()) thread_.join();
  }

  // If rank 0 leaves without a failure before other ranks, the detached thread serves the links
  // until they have left too.
  static void leave_behind(const std::shared_ptr<Impl>& links) {
    if (links->rank_ != 0 || !links->left(0) || links->has_news() || links->all_left()) return;
    {
      const std::lock_guard lock(links->mutex_);
      links->thread_.detach();
      links->self_ = links;
    }
    links->ring();
  }

  bool has_news() const { return has_news_.load(); }
  std::optional<ControlNews> news() const {
    if (!has_news_.load()) return std::nullopt;
    const std::lock_guard lock(mutex_);
    return news_;
  }

  void tell(Kind kind, std::string_view text, std::uint32_t code) {
    {
      const std::lock_guard lock(mutex_);
      outgoing_.push_back({kind, rank_, std::string(text.substr(0, kMostText)), code});
      if (kind == Kind::left) left_[static_cast<std::size_t>(rank_)] = true;
    }
    ring();
  }

  std::optional<double> silent_seconds(int rank) const {
    const std::lock_guard lock(mutex_);
    const auto silence = [this](int of) {
      return seconds_since(heard_[static_cast<std::size_t>(of)]);
    };
    const double usual = deadlines::kMissedBeats * beat_, seconds = silence(rank);
    if (rank == rank_ || left_[static_cast<std::size_t>(rank)] || seconds < usual)
      return std::nullopt;
    if (rank_ == 0 || rank == 0) return seconds;
    // Rank 0 reports on another rank, so the report is as old as rank 0's last heartbeat.
    return silence(0) < usual && seconds >= usual + beat_ ? std::optional(seconds) : std::nullopt;
  }

  void called(std::uint32_t number, const Signature& signature) {
    const std::lock_guard lock(mutex_);
    newest_ = number % calls_.size();
    calls_[newest_] = {true, number, signature};
    newest_of_[static_cast<std::size_t>(rank_)] = number;
  }

  std::vector<int> behind(std::uint32_t number) const {
    const std::lock_guard lock(mutex_);
    std::vector<int> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      const auto& newest = newest_of_[static_cast<std::size_t>(rank)];
      if (rank != rank_ && newest && is_before(*newest, number)) ranks.push_back(rank);
    }
    return ranks;
  }

  bool left(int rank) const {
    const std::lock_guard lock(mutex_);
    return left_[static_cast<std::size_t>(rank)];
  }
  bool all_left() const {
    const std::lock_guard lock(mutex_);
    return hub_gone_ ||
           std::ranges::count(left_, true) >= size_ - !left_[static_cast<std::size_t>(rank_)];
  }

 private:
  void ring() {
    const std::uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof one);
  }

  int rank_of(std::size_t connection) const {
    return rank_ == 0 ? static_cast<int>(connection) : 0;
  }

  // Sends the message to all connections, except to the rank that it comes from. Rank 0 forwards
  // messages this way.
  void spread(const Message& message) {
    for (std::size_t i = 0; i < peers_.size(); ++i)
      if (rank_of(i) != message.rank) send(peers_[i], message);
  }

  std::shared_ptr<Impl> take_self() {
    const std::lock_guard lock(mutex_);
    return std::move(self_);
  }
  bool needed() {
    if (stopping_.load()) return pending_output();
    const std::lock_guard lock(mutex_);
    return !self_ || std::ranges::any_of(peers_, [](const Connection& c) { return bool(c.fd); });
  }

  void run() {
    std::vector<pollfd> entries;
    auto next_beat = Clock::now();
    while (needed()) {
      if (stopping_.load() && flush_by_ == Clock::time_point{})
        flush_by_ = Clock::now() + deadlines::kLastWords;
      if (stopping_.load() && Clock::now() >= flush_by_) break;
      send_outgoing();
      if (Clock::now() >= next_beat) {
        next_beat = Clock::now() + std::chrono::milliseconds(static_cast<int>(beat_ * 1000));
        look_for_unreachable();
        const std::string text = rank_ == 0 ? silent_and_late_ranks() : newest_call();
        for (Connection& c : peers_) send(c, {Kind::heartbeat, rank_, text, 0});
      }
      entries.assign(1, {wake_.get(), POLLIN, 0});
      for (const Connection& c : peers_)
        entries.push_back({c.fd ? c.fd.get() : -1,
                           static_cast<short>(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      const double left = std::chrono::duration<double>(next_beat - Clock::now()).count();
      (void)poll(entries.data(), entries.size(),
                 stopping_.load() ? 10 : static_cast<int>(std::clamp(left, 0.0, 1.0) * 1000) + 1);
      std::uint64_t rung = 0;
      (void)!read(wake_.get(), &rung, sizeof rung);
      for (std::size_t i = 0; i < peers_.size(); ++i)
        if (peers_[i].fd && entries[i + 1].revents != 0) serve(i);
    }
    send_outgoing();
  }

  bool pending_output() {
    const std::lock_guard lock(mutex_);
    return !outgoing_.empty() ||
           std::ranges::any_of(peers_, [](const Connection& c) { return c.fd && !c.out.empty(); });
  }

  void send_outgoing() {
    std::deque<Message> messages;
    {
      const std::lock_guard lock(mutex_);
      messages.swap(outgoing_);
    }
    for (const Message& message : messages) spread(message);
  }

  void serve(std::size_t index) {
    Connection& connection = peers_[index];
    connection.flush();
    std::deque<Message> messages;
    const bool alive = connection.receive(messages);
    for (const Message& message : messages) {
      if (message.kind == Kind::heartbeat) hear(message);
      note(message);
    }
    if (alive) return;
    connection.fd.reset();
    const int gone = rank_of(index);
    if (rank_ != 0) {
      const std::lock_guard lock(mutex_);
      hub_gone_ = true;
    }
    if (left(gone)) return warn_of_silence(gone);
    if (connection.unreachable)
      note({Kind::unreachable, gone, fmt::format("{:.1f}", seconds_since(connection.heard)), 0});
    else
      note({Kind::died, gone, "", 0});
  }

  // Warns if rank 0, which forwards all news, has ended before this rank.
  void warn_of_silence(int gone) {
    if (gone != 0 || left(rank_) || has_news_.load()) return;
    log::warn(
        "rank {}: the process of rank 0 ended before the others left: faults of other ranks are "
        "from now on known by broken connections and deadlines only; let rank 0 end last",
        rank_);
  }

  void hear(const Message& heartbeat) {
    const auto now = Clock::now();
    if (rank_ == 0) {
      if (heartbeat.rank <= 0 || heartbeat.rank >= size_) return;
      compare(heartbeat);
      const std::lock_guard lock(mutex_);
      heard_[static_cast<std::size_t>(heartbeat.rank)] = now;
      return;
    }
    const std::lock_guard lock(mutex_);
    std::ranges::fill(heard_, now);
    const std::size_t calls = heartbeat.text.find(kCallsFollow);
    std::istringstream text(heartbeat.text.substr(0, calls));
    double seconds = 0;
    for (int rank = 0; text >> rank >> seconds;)
      if (rank >= 0 && rank < size_ && seconds >= 0 && seconds < kMostSilence)
        heard_[static_cast<std::size_t>(rank)] =
            now - std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
    std::ranges::fill(newest_of_, std::nullopt);
    if (calls == std::string::npos) return;
    std::istringstream late(heartbeat.text.substr(calls + kCallsFollow.size()));
    Newest number = 0;
    for (int rank = 0; late >> rank >> number;)
      if (rank >= 0 && rank < size_ && number >= kNoCall && number <= UINT32_MAX)
        newest_of_[static_cast<std::size_t>(rank)] = number;
  }
  // Rank 0 only: compares another rank's newest call with rank 0's call of the same number.
  void compare(const Message& heartbeat) {
    std::istringstream text(heartbeat.text);
    std::uint32_t number = 0;
    std::string theirs, own;
    if (!(text >> number) || !std::getline(text >> std::ws, theirs)) return;
    {
      const std::lock_guard lock(mutex_);
      newest_of_[static_cast<std::size_t>(heartbeat.rank)] = number;
      const CalledOperation& call = calls_[number % calls_.size()];
      if (!call.used || call.number != number) return;
      own = describe(call.signature);
    }
    if (own == theirs) return;
    note(
        {Kind::failed, heartbeat.rank,
         fmt::format("ranks called different operations: rank 0 called {}, rank {} called {} (#{})",
                     own, heartbeat.rank, theirs, number),
         static_cast<std::uint32_t>(ErrorCode::mismatch)});
  }
  std::string newest_call() const {
    const std::lock_guard lock(mutex_);
    const CalledOperation& call = calls_[newest_];
    return call.used ? fmt::format("{} {}", call.number, describe(call.signature)) : std::string();
  }
  std::string silent_and_late_ranks() const {
    std::string text = silent_ranks();
    const std::lock_guard lock(mutex_);
    Newest first = kNoCall;  // the newest call of any rank
    for (const auto& newest : newest_of_)
      if (newest && is_before(first, *newest)) first = *newest;
    std::string late;
    for (int rank = 0; rank < size_ && text.size() + late.size() + 32 < kMostText; ++rank)
      if (const auto& newest = newest_of_[static_cast<std::size_t>(rank)];
          newest && is_before(*newest, first))
        late += fmt::format(" {} {}", rank, *newest);
    if (!late.empty()) text.append(kCallsFollow).append(late);
    return text;
  }
  std::string silent_ranks() const {
    std::string text;
    for (int rank = 0; rank < size_ && text.size() + 32 < kMostText; ++rank)
      if (const auto seconds = silent_seconds(rank))
        text += fmt::format("{} {:.1f} ", rank, *seconds);
    return text;
  }

  // Records news; rank 0 also forwards it.
  void note(const Message& message) {
    if (message.rank < 0 || message.rank >= size_ || message.rank == rank_) return;
    if (message.kind == Kind::heartbeat || message.kind == Kind::hello ||
        message.kind == Kind::welcome)
      return;
    {
      const std::lock_guard lock(mutex_);
      if (message.kind == Kind::left) {
        left_[static_cast<std::size_t>(message.rank)] = true;
      } else if (!news_) {
        news_ = ControlNews{kind_of(message.kind), message.rank, message.text, message.code};
        has_news_.store(true);
      }
    }
    if (rank_ == 0) spread(message);
  }

  static ControlNews::Kind kind_of(Kind kind) {
    switch (kind) {
      case Kind::unreachable:
        return ControlNews::Kind::unreachable;
      case Kind::failed:
        return ControlNews::Kind::failed;
      case Kind::aborted:
        return ControlNews::Kind::aborted;
      default:
        return ControlNews::Kind::died;
    }
  }

  void look_for_unreachable() {
    const double elapsed = std::min(seconds_since(last_look_), 2 * beat_);
    last_look_ = Clock::now();
    for (std::size_t i = 0; i < peers_.size(); ++i) {
      Connection& connection = peers_[i];
      if (!connection.fd || left(rank_of(i))) continue;
      connection.look(elapsed);
      if (connection.out_of_reach > limit_)
        note({Kind::unreachable, rank_of(i), fmt::format("{:.1f}", connection.out_of_reach), 0});
    }
  }

  const int rank_, size_;
  const double limit_, beat_;  // seconds
  mutable std::mutex mutex_;   // held for bookkeeping only
  std::optional<ControlNews> news_;
  std::vector<bool> left_;
  std::vector<Clock::time_point> heard_;  // by rank: last sign of life of its process
  struct CalledOperation {
    bool used = false;
    std::uint32_t number = 0;
    Signature signature;
  };
  std::vector<CalledOperation> calls_;  // rank 0: by number modulo kCalls; others: only the newest
  std::size_t newest_ = 0;
  // By rank: the number of its newest call. Ranks other than 0 know only those of late ranks.
  std::vector<std::optional<Newest>> newest_of_;
  bool hub_gone_ = false;
  std::deque<Message> outgoing_;
  std::atomic<bool> has_news_{false}, stopping_{false};
  FileDescriptor wake_;
  std::vector<Connection> peers_;  // rank 0: by rank; others: to rank 0. Only thread_ uses them
  Clock::time_point flush_by_{}, last_look_ = Clock::now();
  std::shared_ptr<Impl> self_;  // see leave_behind
  std::thread thread_;
};

ControlLinks::ControlLinks(int rank, int size, Store& store, const std::string& prefix,
                           Deadline deadline, double unreachable_seconds) {
  impl_ = std::make_shared<Impl>(rank, size, store, prefix, deadline, unreachable_seconds);
}

ControlLinks::~ControlLinks() {
  if (impl_) Impl::leave_behind(impl_);
}

double ControlLinks::patience(double deadline_seconds) {
  return std::clamp(deadlines::kShareOutOfReach * deadline_seconds, deadlines::kShortestOutOfReach,
                    deadlines::kLongestOutOfReach);
}
std::optional<double> ControlLinks::silent_seconds(int rank) const {
  return impl_->silent_seconds(rank);
}

std::optional<ControlNews> ControlLinks::news() const { return impl_->news(); }
bool ControlLinks::has_news() const { return impl_->has_news(); }
void ControlLinks::tell(ControlNews::Kind what, std::string_view text, std::uint32_t code) {
  impl_->tell(what == ControlNews::Kind::aborted ? Kind::aborted : Kind::failed, text, code);
}
void ControlLinks::called(std::uint32_t number, const Signature& signature) {
  impl_->called(number, signature);
}
std::vector<int> ControlLinks::behind(std::uint32_t number) const { return impl_->behind(number); }
void ControlLinks::leave() { impl_->tell(Kind::left, "", 0); }
bool ControlLinks::left(int rank) const { return impl_->left(rank); }
bool ControlLinks::all_left() const { return impl_->all_left(); }

}  // namespace shoal::collectives::transport
