// Moves messages: credits, queues, completions and waiting.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include <poll.h>
#include <time.h>

#include "shoal/collectives/transport/fabric/fabric_endpoint.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::fabric {
namespace {

constexpr std::chrono::milliseconds kStallCheck{200};
constexpr int kNapMicroseconds = 50;      // for providers without a wait descriptor
constexpr int kTimerMicroseconds = 1000;  // for providers that resend only while polled

constexpr std::uint16_t kMostReturned = 0xffff;
// Consecutive polls that may leave out the rails: messages arrive through sockets, or nothing is
// due on a rail.
constexpr int kMostLeftOut = 8;

void nap(int microseconds) {
  const timespec time{microseconds / 1'000'000, (microseconds % 1'000'000) * 1000L};
  nanosleep(&time, nullptr);
}

// Keeps the rail open until the process ends. It is not polled, so later arrivals are ignored.
void leave_open(std::unique_ptr<Rail> rail) {
  log::once(
      log::Level::info, "fabric-left-open",
      fmt::format("{} on {}: left open until the process ends, since peers' writes were under "
                  "way and closing would crash libfabric",
                  rail->provider(), rail->site().name));
  static std::mutex mutex;
  // Never destroyed: its destructor would close the rails at the end of the process.
  static auto& open = *new std::vector<std::unique_ptr<Rail>>;
  const std::scoped_lock lock(mutex);
  open.push_back(std::move(rail));
}

}  // namespace

FabricEndpoint::FabricEndpoint(FabricSetup setup)
    : setup_(std::move(setup)),
      cache_(
          [this] {
            std::vector<Rail*> rails;
            for (const auto& rail : setup_.rails) rails.push_back(rail.get());
            return rails;
          }(),
          setup_.idle_registrations),
      writes_(setup_.rails.size()),
      next_receive_id_(setup_.first_receive_id),
      last_stall_check_(Clock::now()) {
  for (const PeerSetup& peer : setup_.peers) {
    Peer state;
    state.credits.assign(static_cast<std::size_t>(peer.peer_rails), setup_.credits);
    state.owed.assign(setup_.rails.size(), 0);
    state.unmatched_left = setup_.unmatched;
    // Ranks of one host should start with different rails.
    state.next_route = state.next_stripe = static_cast<unsigned>(setup_.rank);
    peers_.push_back(std::move(state));
  }
  can_poll_ = std::ranges::all_of(setup_.rails,
                                  [](const auto& rail) { return rail->wait_descriptor() >= 0; });
}

// Still sends the messages that the provider already has, such as the last one of a barrier. Drops
// all others, because their buffers may disappear with this endpoint.
FabricEndpoint::~FabricEndpoint() {
  for (Peer& peer : peers_) peer.waiting.clear();
  for (auto& queue : writes_) queue.clear();
  const auto busy = [&] {
    return (setup_.lane && setup_.lane->unsent()) ||
           std::ranges::any_of(setup_.rails,
                               [](const auto& rail) { return rail->in_flight() > 0; });
  };
  const Deadline deadline = Deadline::in_seconds(abandoned_ ? 0 : deadlines::kEndpointFlush);
  try {
    while (busy() && !deadline.passed()) {
      for (const auto& rail : setup_.rails) {
        events_.clear();
        rail->poll(events_);
      }
      if (setup_.lane)
        setup_.lane->poll([](std::span<const std::byte>) {}, [](int) { return false; });
      if (events_.empty()) nap(kNapMicroseconds);
    }
  } catch (const Error& error) {
    // The provider failed during shutdown: no caller is left to receive the error.
    log::debug("leaving the fabric: {}", error.what());
  }
  if (granted_segments_ > 0)
    for (auto& rail : setup_.rails)
      if (rail->must_stay_open_for_writes()) leave_open(std::move(rail));
}

void FabricEndpoint::submit(int peer, Message message) {
  Peer& to = peer_at(peer);
  if (to.lost) return;
  if (to.waiting.empty() && dispatch(peer, message)) return;
  to.waiting.push_back(std::move(message));
  if (!to.waits) {
    to.waits = true;
    waiting_peers_.push_back(peer);
  }
}

// Puts as many returned credits into the header as fit. Once the header is sent, the caller must
// subtract them from the returned reference (credits) and from matched_owed (matched).
int& FabricEndpoint::put_returns(Peer& to, MessageHeader& header) const {
  const auto owed = std::ranges::max_element(to.owed);
  header.credit_rail = static_cast<std::uint8_t>(owed - to.owed.begin());
  header.credits = static_cast<std::uint16_t>(std::min<int>(*owed, kMostReturned));
  header.matched = static_cast<std::uint16_t>(std::min<int>(to.matched_owed, kMostReturned));
  return *owed;
}

// Needs no credit: TCP's flow control holds back data that the peer does not take.
bool FabricEndpoint::dispatch_by_lane(int peer, Message& message) {
  const MessageKind kind = message.header.kind;
  if (!setup_.lane || kind == MessageKind::segment || kind == MessageKind::credit) return false;
  setup_.lane->reach(peer);
  Peer& to = peer_at(peer);
  int& owed = put_returns(to, message.header);
  const auto payload = message.words.empty()
                           ? std::span(message.data, static_cast<std::size_t>(message.bytes))
                           : std::as_bytes(std::span<const std::uint64_t>(message.words));
  if (!setup_.lane->send(peer, std::as_bytes(std::span(&message.header, 1)), payload)) return false;
  owed -= message.header.credits;
  to.matched_owed -= message.header.matched;
  ++statistics_.by_sockets;
  copied(to, message);
  return true;
}

bool FabricEndpoint::poll_lane() {
  if (!setup_.lane) return false;
  const bool moved = setup_.lane->poll(
      [this](std::span<const std::byte> bytes) { take_message(-1, bytes.data(), bytes.size()); },
      [this](int peer) { return peer_at(peer).posts > 0; });
  for (const auto& [peer, why] : setup_.lane->take_losses()) lose(peer, false, why);
  return moved;
}

// True if the payload has been copied and the message is being sent, or if its peer is lost.
bool FabricEndpoint::dispatch(int peer, Message& message) {
  if (dispatch_by_lane(peer, message)) return true;
  Peer& to = peer_at(peer);
  const auto& routes = setup_of(peer).routes;
  const bool only_returns = message.header.kind == MessageKind::credit;
  const int reserve = only_returns ? 0 : 1;
  for (std::size_t tried = 0; tried < routes.size(); ++tried) {
    const Route& route = routes[to.next_route++ % routes.size()];
    int& credits = to.credits[static_cast<std::size_t>(route.peer_rail)];
    if (credits <= reserve) continue;
    Rail& rail = rail_at(route.rail);
    Transfer* transfer = rail.take_message();
    if (!transfer) continue;
    int& owed = put_returns(to, message.header);
    std::memcpy(transfer->slot, &message.header, sizeof message.header);
    std::size_t length = sizeof message.header;
    if (!message.words.empty()) {
      std::memcpy(transfer->slot + length, message.words.data(),
                  message.words.size() * sizeof(std::uint64_t));
      length += message.words.size() * sizeof(std::uint64_t);
    } else if (message.bytes > 0) {
      std::memcpy(transfer->slot + length, message.data, static_cast<std::size_t>(message.bytes));
      length += static_cast<std::size_t>(message.bytes);
    }
    transfer->peer = peer;
    transfer->carries_data =
        message.header.kind == MessageKind::eager || message.header.kind == MessageKind::segment;
    const PostResult result = rail.send(transfer, route.address, length);
    if (result == PostResult::again) {
      rail.give_back(transfer);
      continue;
    }
    if (result == PostResult::failed) {
      rail.give_back(transfer);
      lose(peer, transfer->carries_data, library().strerror(rail.last_error()));
      return true;
    }
    --credits;
    owed -= message.header.credits;
    to.matched_owed -= message.header.matched;
    copied(to, message);
    return true;
  }
  return false;
}

// Call once the payload has been copied into a buffer of a rail or of the socket lane.
void FabricEndpoint::copied(Peer& to, const Message& message) {
  if (message.completion) {
    --message.completion->pending;
    --to.posts;
  }
  if (message.part_of && --message.part_of->outstanding == 0) finish(*message.part_of);
}

bool FabricEndpoint::progress() {
  // Polls sockets first: polling the rails costs several times as much.
  bool moved = poll_lane();
  const bool ask_rails = (!moved && rails_are_due()) || ++rails_left_out_ >= kMostLeftOut;
  if (ask_rails) rails_left_out_ = 0;
  for (std::size_t rail = 0; ask_rails && rail < setup_.rails.size(); ++rail) {
    events_.clear();
    setup_.rails[rail]->poll(events_);
    for (RailEvent& event : events_) handle(static_cast<int>(rail), event);
    moved = moved || !events_.empty();
  }
  flush_grants();
  moved = flush_waiting() || moved;
  moved = flush_writes() || moved;
  moved = flush_owing() || moved;
  if (!failures_.empty()) {
    const Error error = std::move(failures_.front());
    failures_.pop_front();
    throw error;
  }
  return moved;
}

// Whether this rank waits for a message on a rail. Otherwise rails carry only returned credits, and
// messages for which a socket was full.
bool FabricEndpoint::rails_are_due() const {
  return !setup_.lane || expected_on_rails_ > 0 || !granted_.empty() || !outgoing_.empty() ||
         !waiting_peers_.empty() ||
         std::ranges::any_of(setup_.rails, [](const auto& rail) { return rail->in_flight() > 0; });
}

bool FabricEndpoint::sending() const {
  return !waiting_peers_.empty() || !waiting_grants_.empty() ||
         (setup_.lane && setup_.lane->unsent()) ||
         std::ranges::any_of(setup_.rails, [](const auto& rail) { return rail->in_flight() > 0; });
}

bool FabricEndpoint::must_be_polled() const {
  return std::ranges::any_of(setup_.rails,
                             [](const auto& rail) { return rail->needs_frequent_progress(); });
}

void FabricEndpoint::handle(int rail, RailEvent& event) {
  switch (event.kind) {
    case RailEvent::Kind::received:
      take_message(rail, event.transfer->slot, event.bytes);
      rail_at(rail).repost(event.transfer);
      return;
    case RailEvent::Kind::sent:
      rail_at(rail).give_back(event.transfer);
      return;
    case RailEvent::Kind::written: {
      auto& outgoing = *static_cast<Outgoing*>(event.transfer->owner);
      rail_at(rail).give_back(event.transfer);
      if (--outgoing.outstanding == 0) finish(outgoing);
      return;
    }
    case RailEvent::Kind::peer_wrote:
      take_write(static_cast<std::uint32_t>(event.data), rail, event.transfer);
      return;
    case RailEvent::Kind::failed:
      take_failure(rail, event);
      return;
  }
}

void FabricEndpoint::take_message(int rail, const std::byte* data, std::size_t bytes) {
  MessageHeader header;
  if (bytes >= sizeof header) std::memcpy(&header, data, sizeof header);
  const std::byte* payload = data + sizeof header;
  const std::size_t length = bytes - sizeof header;
  const int peer = static_cast<int>(header.source);
  if (bytes < sizeof header || header.magic != setup_.magic || peer < 0 || peer >= setup_.size ||
      peer == setup_.rank || header.bytes < 0 ||
      header.credit_rail >= std::max(1, setup_of(peer).peer_rails) ||
      (header.kind == MessageKind::eager && static_cast<std::int64_t>(length) != header.bytes)) {
    log::once(log::Level::warn, "fabric-stranger",
              fmt::format("{}: dropped a message that is not of this job", setup_.name));
    return;
  }
  Peer& from = peer_at(peer);
  if (rail >= 0) ++from.owed[static_cast<std::size_t>(rail)];  // -1: through a socket, no credit
  from.credits[header.credit_rail] += header.credits;
  from.unmatched_left += header.matched;
  switch (header.kind) {
    case MessageKind::eager:
      if (setup_.lane) setup_.lane->reach(peer);
      take_eager(header, payload);
      break;
    case MessageKind::grant:
      take_grant(header, payload, length);
      break;
    case MessageKind::announce:
      take_announce(header);
      break;
    case MessageKind::segment:
      take_segment(header, payload, length);
      break;
    case MessageKind::credit:
      break;
  }
  note_owing(peer);
}

void FabricEndpoint::take_failure(int rail, const RailEvent& event) {
  Transfer* transfer = event.transfer;
  if (event.error == FI_ECANCELED) return;
  if (transfer && transfer->kind != Transfer::Kind::receive) {
    const int peer = transfer->peer;
    const bool data = transfer->kind == Transfer::Kind::write || transfer->carries_data;
    rail_at(rail).give_back(transfer);
    return lose(peer, data, event.text);
  }
  if (transfer) rail_at(rail).repost(transfer);
  if (transfer && event.error == FI_ETRUNC) {
    log::once(log::Level::warn, "fabric-truncated",
              fmt::format("{}: dropped a message longer than this job sends", setup_.name));
    return;
  }
  fail(Error(ErrorCode::io, fmt::format("{}: {}", setup_.name, event.text)).at_rank(setup_.rank));
}

// Fails only if data was lost or posts are unfinished: a peer may leave after its last message.
void FabricEndpoint::lose(int peer, bool data_lost, const std::string& why) {
  Peer& gone = peer_at(peer);
  if (gone.lost) return;
  gone.lost = true;
  gone.why_lost = why;
  gone.waiting.clear();
  for (auto& queue : writes_)
    std::erase_if(queue, [&](const Write& write) { return write.message->peer == peer; });
  if (data_lost || gone.posts > 0) refuse_lost(peer);
}

// Credits normally return with the next message. Once half of them are due, this rank sends a
// message that only returns credits.
void FabricEndpoint::note_owing(int peer) {
  Peer& to = peer_at(peer);
  if (to.owing || to.lost) return;
  if (std::ranges::max(to.owed) < setup_.credits / 2 && to.matched_owed < setup_.unmatched / 2)
    return;
  to.owing = true;
  owing_peers_.push_back(peer);
}

bool FabricEndpoint::flush_owing() {
  if (owing_peers_.empty()) return false;
  std::vector<int> due;
  due.swap(owing_peers_);
  bool moved = false;
  for (const int peer : due) {
    Peer& to = peer_at(peer);
    to.owing = false;
    while (!to.lost && (std::ranges::max(to.owed) >= setup_.credits / 2 ||
                        to.matched_owed >= setup_.unmatched / 2)) {
      Message message;
      message.header = header_of(MessageKind::credit, {});
      if (!dispatch(peer, message)) {
        note_owing(peer);
        break;
      }
      moved = true;
    }
  }
  return moved;
}

bool FabricEndpoint::flush_waiting() {
  if (waiting_peers_.empty()) return false;
  std::vector<int> waiting;
  waiting.swap(waiting_peers_);
  bool moved = false;
  for (const int peer : waiting) {
    Peer& to = peer_at(peer);
    while (!to.waiting.empty() && dispatch(peer, to.waiting.front())) {
      if (!to.waiting.empty()) to.waiting.pop_front();  // the queue of a lost peer is already empty
      moved = true;
    }
    to.waits = !to.waiting.empty();
    if (to.waits) waiting_peers_.push_back(peer);
  }
  return moved;
}

bool FabricEndpoint::flush_writes() {
  bool moved = false;
  for (std::size_t at = 0; at < writes_.size(); ++at) {
    auto& queue = writes_[at];
    Rail& rail = *setup_.rails[at];
    while (!queue.empty()) {
      const Write write = queue.front();
      Outgoing& message = *write.message;
      int& credits =
          peer_at(message.peer).credits[static_cast<std::size_t>(write.route->peer_rail)];
      if (rail.writes_take_receives() && credits <= 1) break;
      Transfer* transfer = rail.take_write();
      if (!transfer) break;
      transfer->peer = message.peer;
      transfer->owner = &message;
      const PostResult result = rail.write(
          transfer, {message.data + write.offset, static_cast<std::size_t>(write.bytes),
                     message.use ? message.use.descriptor(static_cast<int>(at)) : nullptr,
                     write.route->address, write.address, write.key, write.id});
      if (result != PostResult::posted) rail.give_back(transfer);
      if (result == PostResult::again) break;
      if (result == PostResult::failed) {
        lose(message.peer, true, library().strerror(rail.last_error()));
        continue;
      }
      if (rail.writes_take_receives()) --credits;
      queue.pop_front();
      moved = true;
    }
  }
  return moved;
}

void FabricEndpoint::flush_grants() {
  for (std::size_t left = waiting_grants_.size(); left > 0; --left) {
    const MatchKey key = waiting_grants_.front();
    waiting_grants_.pop_front();
    if (const auto found = incoming_.find(key); found != incoming_.end()) grant(found->second);
  }
}

// If a send waits long for its grant, the ranks may have made different calls. So this rank
// announces its call, and the peer compares.
void FabricEndpoint::announce_stalled() {
  const auto now = Clock::now();
  if (now - last_stall_check_ < kStallCheck) return;
  last_stall_check_ = now;
  // Announces only large messages, because small ones were announced when posted. Skips a peer for
  // which other messages still wait.
  for (auto& [key, outgoing] : outgoing_)
    if (!outgoing.started && outgoing.bytes > setup_.eager_bytes && now >= outgoing.announce_at &&
        peer_at(outgoing.peer).waiting.empty())
      announce(outgoing);
}

void FabricEndpoint::sleep(int microseconds) {
  announce_stalled();
  if (microseconds <= 0) return;
  if (!can_poll_) return nap(std::min(microseconds, kNapMicroseconds));
  std::vector<pollfd> descriptors;
  for (const auto& rail : setup_.rails) {
    if (!rail->may_wait()) {
      rails_left_out_ = kMostLeftOut;
      return;
    }
    descriptors.push_back({rail->wait_descriptor(), POLLIN, 0});
    if (rail->needs_frequent_progress()) microseconds = std::min(microseconds, kTimerMicroseconds);
  }
  const timespec time{microseconds / 1'000'000, (microseconds % 1'000'000) * 1000L};
  if (setup_.lane) descriptors.push_back({setup_.lane->descriptor(), POLLIN, 0});
  if (ppoll(descriptors.data(), descriptors.size(), &time, nullptr) > 0 && setup_.lane &&
      descriptors.back().revents != 0)
    setup_.lane->look_closely();
  else
    rails_left_out_ = kMostLeftOut;
}

}  // namespace shoal::collectives::fabric
