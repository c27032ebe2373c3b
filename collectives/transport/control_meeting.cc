#include "shoal/collectives/transport/control_meeting.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <iterator>
#include <list>
#include <random>
#include <thread>

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include "shoal/collectives/transport/host_identity.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/error_code.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/rendezvous/cards.h"
#include "shoal/runtime/rendezvous/job_token.h"
#include "shoal/runtime/rendezvous/roll_call.h"

namespace shoal::collectives::transport::control {
namespace {

constexpr const char *kHub = "/hub", *kUnreached = "/unreached", *kPurpose = "control";
// Most connections that have not shown the job's token yet, and bytes that each may send at once.
constexpr std::size_t kMaxStrangers = 64, kMostOfStranger = 256;

// Tells the other ranks how to reach rank 0.
struct HubCard {
  HostIdentity host;
  int port = 0;
  std::string secret;
  std::vector<std::string> addresses;  // the loopback addresses last
};

std::string to_card(const HubCard& card) {
  return fmt::format("{}\n{}\n{}\n{}", transport::to_card(card.host), card.port, card.secret,
                     fmt::join(card.addresses, "\n"));
}

HubCard parse_hub(std::string_view text) {
  CardFields fields(text, '\n');
  HubCard card;
  card.host = read_identity(fields);
  card.port = fields.number<int>("port", 1, 65535);
  card.secret = card_name(fields.next("secret"));
  while (!fields.at_end()) {
    card.addresses.push_back(card_name(fields.next("address")));
    if (!is_address(card.addresses.back()))
      throw_error(ErrorCode::corrupt_data, "'{}' is no address", card.addresses.back());
  }
  if (std::ssize(card.addresses) < kLoopbacks)
    throw_error(ErrorCode::corrupt_data, "it ends before its addresses");
  return card;
}

Error missing_ranks(int rank, const std::vector<int>& missing) {
  return Error(ErrorCode::timeout,
               fmt::format("rank(s) {} did not join the group in time", fmt::join(missing, ", ")),
               "see whether they started and why they stopped")
      .at_rank(rank)
      .with_peer(missing.front())
      .in_operation("make_communicator");
}

void await_all(const Meeting& of) {
  const RollCall roll =
      call_roll(of.store, of.prefix + "/came", of.rank, of.size, "1", of.deadline);
  if (!roll.missing.empty()) throw missing_ranks(of.rank, roll.missing);
}

// Rank 0's side. It answers several unknown clients at once, so that a silent one delays no rank.
class Hub {
 public:
  Hub(const Meeting& of, const JobToken& token)
      : of_(of), token_(token), peers_(static_cast<std::size_t>(of.size)) {}

  std::vector<Connection> form() {
    HubCard own{own_identity(), 0, {}, own_addresses()};
    const FileDescriptor listener = listen_anywhere(SOMAXCONN, own.port);
    std::random_device random;
    own.secret = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
    token_ = token_.with(own.secret);
    of_.store.set(of_.prefix + kHub, to_card(own));
    auto next_look = Deadline::in_seconds(deadlines::kLookForUnreached);
    for (;;) {
      await_data(listener.get());
      accept_strangers(listener.get());
      for (auto stranger = strangers_.begin(); stranger != strangers_.end();)
        stranger = advance(*stranger) ? std::next(stranger) : strangers_.erase(stranger);
      if (absent().empty()) break;
      if (of_.deadline.passed()) give_up(missing_ranks(0, absent()));
      if (!next_look.passed()) continue;
      next_look = Deadline::in_seconds(deadlines::kLookForUnreached);
      if (const auto report = of_.store.try_get(of_.prefix + kUnreached))
        give_up(Error(ErrorCode::unavailable, *report, "look at that rank's own output")
                    .at_rank(0)
                    .with_peer(absent().front())
                    .in_operation("make_communicator"));
    }
    for (Connection& connection : peers_) send(connection, {Kind::welcome, 0, "", 0});
    return std::move(peers_);
  }

 private:
  // A connection whose process has not shown the job's token yet.
  struct Stranger {
    Connection connection;
    handshake::Server handshake;
    bool challenged = false;
    Clock::time_point accepted = Clock::now();
  };

  Connection& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  // The oldest stranger goes if one more comes, but not before a rank's handshake could have ended.
  // A rank that is turned away tries again.
  bool is_full() const {
    return strangers_.size() == kMaxStrangers &&
           seconds_since(strangers_.front().accepted) < deadlines::kShortestGreeting;
  }

  void await_data(int listener) {
    std::vector<pollfd> entries{{listener, static_cast<short>(is_full() ? 0 : POLLIN), 0}};
    for (const Stranger& stranger : strangers_)
      entries.push_back({stranger.connection.fd.get(), POLLIN, 0});
    (void)poll(entries.data(), entries.size(),
               static_cast<int>(std::clamp(of_.deadline.seconds_left() * 1000, 0.0, 100.0)));
  }

  void accept_strangers(int listener) {
    for (;;) {
      if (is_full()) return;
      FileDescriptor fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!fd && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
        throw Error(ErrorCode::io,
                    fmt::format("cannot accept the control connections of {} ranks: {}",
                                of_.size - 1, std::strerror(errno)),
                    "raise `ulimit -n`")
            .at_rank(0)
            .in_operation("make_communicator");
      if (!fd) return;
      prepare(fd.get());
      if (strangers_.size() == kMaxStrangers) strangers_.pop_front();
      strangers_.push_back({{}, handshake::Server(token_, kPurpose)});
      strangers_.back().connection.fd = std::move(fd);
    }
  }

  // Takes the stranger's next step. Returns false once it is met or turned away.
  bool advance(Stranger& stranger) {
    std::deque<Message> messages;
    const bool alive = stranger.connection.receive(messages, kMostOfStranger);
    if (messages.empty())
      return alive && seconds_since(stranger.accepted) < deadlines::kHelloAnswer;
    const Message& message = messages.front();
    if (messages.size() > 1 || message.kind != Kind::hello || message.rank <= 0 ||
        message.rank >= of_.size)
      return false;
    if (!stranger.challenged) {
      if (message.text.size() != handshake::kHello) return false;
      send(stranger.connection, {Kind::hello, 0, stranger.handshake.challenge(message.text), 0});
      return stranger.challenged = true;
    }
    if (stranger.handshake.admits(message.text) && stranger.handshake.rank() == message.rank)
      peer(message.rank) = std::move(stranger.connection);  // replaces one that the rank gave up
    return false;
  }

  std::vector<int> absent() {
    std::vector<int> missing;
    for (int other = 1; other < of_.size; ++other)
      if (!peer(other).fd) missing.push_back(other);
    return missing;
  }

  [[noreturn]] void give_up(const Error& error) {
    const auto code = static_cast<std::uint32_t>(error.code());
    for (Connection& connection : peers_)
      send(connection, {Kind::failed, error.peer(), error.message(), code});
    throw Error(error);
  }

  const Meeting& of_;
  JobToken token_;
  std::vector<Connection> peers_;
  std::list<Stranger> strangers_;
};

// Every other rank's side.
class Guest {
 public:
  Guest(const Meeting& of, const JobToken& token) : of_(of), token_(token), own_(own_identity()) {}

  std::vector<Connection> join() {
    card_ = read_card(0, "control links", hub_card(), parse_hub);
    token_ = token_.with(card_.secret);
    // A loopback address reaches rank 0 only from its own machine and network namespace: there it
    // is tried first, elsewhere never.
    auto& addresses = card_.addresses;
    if (share_loopback(own_, card_.host))
      std::ranges::rotate(addresses, addresses.end() - std::ptrdiff_t{kLoopbacks});
    else
      addresses.resize(addresses.size() - std::size_t{kLoopbacks});
    try {
      if (addresses.empty())
        throw no_way(
            ErrorCode::unavailable,
            fmt::format("rank 0 on '{}' has no address but its loopback", card_.host.name));
      meet_hub();
    } catch (const Error& problem) {
      tell_unreached(problem);
      throw;
    }
    await_welcome();
    std::vector<Connection> all;
    all.push_back(std::move(hub_));
    return all;
  }

 private:
  std::string hub_card() const {
    try {
      return of_.store.get(of_.prefix + kHub, of_.deadline);
    } catch (const Error& problem) {
      if (problem.code() != ErrorCode::timeout) throw;
      throw missing_ranks(of_.rank, {0});
    }
  }

  // Tells rank 0, which would otherwise wait for this rank until the deadline.
  void tell_unreached(const Error& problem) const {
    try {
      // Rank 0's host serves the store too, and may be out of reach altogether.
      (void)of_.store.get(of_.prefix + kHub, Deadline::in_seconds(deadlines::kSilentStore));
      of_.store.compare_set(of_.prefix + kUnreached, std::nullopt,
                            fmt::format("rank {} did not join: {}", of_.rank, problem.message()));
    } catch (const Error& lost) {
      log::debug("rank {}: cannot tell rank 0: {}", of_.rank, lost.what());
    }
  }

  Error no_way(ErrorCode code, std::string text) const {
    std::string remedy = "let the hosts reach each other over TCP, on every port";
    if (differ(own_.network, card_.host.network) && !differ(own_.machine, card_.host.machine)) {
      text += fmt::format(
          "; ranks 0 and {} live in different network namespaces (containers) of one machine, {} "
          "and {}",
          of_.rank, card_.host.network, own_.network);
      remedy = "give the containers one network (`--network host`, or one bridge)";
    }
    return Error(code, std::move(text), std::move(remedy))
        .at_rank(of_.rank)
        .with_peer(0)
        .in_operation("make_communicator");
  }

  // Tries one address after another. Another machine may listen at the same address (behind a
  // bridge, for example), but only rank 0 has the secret of its card and the job's token. Rank 0
  // answers many ranks, so each round gives it more time.
  void meet_hub() {
    const std::size_t ways = card_.addresses.size();
    std::vector<std::string> whys(ways, "no time left");
    const auto out_of_reach = Deadline::in_seconds(of_.out_of_reach);
    bool reached = false;  // some process accepted a connection
    for (std::size_t attempt = 0;; ++attempt) {
      std::string& why = whys[attempt % ways];
      hub_ = Connection{};
      hub_.fd = connect_to(card_.addresses[attempt % ways], card_.port, of_.deadline, &why);
      if (hub_.fd && is_answered(attempt / ways)) return;
      if (hub_.fd)
        why =
            "connected, but what listens there does not answer as rank 0; "
            "SHOAL_JOB_TOKEN_FILE must hold the same token on every host";
      reached = reached || hub_.fd;
      const bool unreachable = !reached && attempt + 1 >= ways && out_of_reach.passed();
      if (of_.deadline.passed() || unreachable) throw did_not_answer(whys);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  bool is_answered(std::size_t round) {
    const handshake::Client client(token_, kPurpose, of_.rank);
    send(hub_, {Kind::hello, of_.rank, client.hello(), 0});
    Message challenge;
    const double seconds = std::clamp(of_.deadline.seconds_left(), 0.0,
                                      deadlines::kHelloAnswer * static_cast<double>(1 + round));
    if (!await(hub_, challenge, Deadline::in_seconds(seconds)) || challenge.kind != Kind::hello)
      return false;
    const auto proof = client.answer(challenge.text);
    if (proof) send(hub_, {Kind::hello, of_.rank, *proof, 0});
    return proof.has_value();
  }

  Error did_not_answer(const std::vector<std::string>& whys) const {
    std::vector<std::string> tried;
    for (std::size_t i = 0; i < whys.size(); ++i)
      tried.push_back(fmt::format("{} ({})", card_.addresses[i], whys[i]));
    return no_way(of_.deadline.passed() ? ErrorCode::timeout : ErrorCode::unavailable,
                  fmt::format("rank 0 on '{}' did not answer at {}, port {}", card_.host.name,
                              fmt::join(tried, ", "), card_.port));
  }

  void await_welcome() {
    Message welcome;
    // Rank 0 waits until the same deadline and then names the missing ranks.
    const auto patience = Deadline::in_seconds(std::max(of_.deadline.seconds_left(), 0.0) +
                                               deadlines::kMissingReportedWithin);
    if (await(hub_, welcome, patience) && welcome.kind == Kind::failed)
      throw Error(error_code_of(welcome.code).value_or(ErrorCode::peer_lost), welcome.text,
                  "see whether they started and why they stopped")
          .at_rank(of_.rank)
          .with_peer(welcome.rank >= 0 && welcome.rank < of_.size ? welcome.rank : 0)
          .in_operation("make_communicator");
    if (welcome.kind != Kind::welcome)
      throw Error(ErrorCode::timeout, "rank 0 did not hear of all ranks in time",
                  "look at rank 0's output for which are missing")
          .at_rank(of_.rank)
          .with_peer(0)
          .in_operation("make_communicator");
  }

  const Meeting& of_;
  JobToken token_;
  const HostIdentity own_;
  HubCard card_;
  Connection hub_;
};

}  // namespace

std::vector<Connection> meet(const Meeting& meeting) {
  await_all(meeting);
  const JobToken token = JobToken::of_environment();
  return meeting.rank == 0 ? Hub(meeting, token).form() : Guest(meeting, token).join();
}

}  // namespace shoal::collectives::transport::control
