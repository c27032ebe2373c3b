#include "shoal/collectives/transport/shm_endpoint.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <ctime>
#include <deque>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shoal/collectives/transport/as_called.h"
#include "shoal/collectives/transport/doorbell.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::transport {
namespace {

enum class PacketKind : std::uint32_t {
  eager,    // the whole message
  offer,    // announces a large message: `location` of its data, `sender`: the id of the send
  accept,   // answers an offer: `location` to write to, `receiver`: the id of the receive
  data,     // a piece for receive `receiver`
  written,  // the sender has stored all data in the buffer of receive `receiver`
  taken     // the receiver has loaded all data from the buffer of send `sender`
};

constexpr std::size_t kSlotBytes = 16 << 10;
constexpr std::size_t kSlots = 16;
constexpr std::int64_t kPieceBytes = 256 << 10;  // bytes per copy between mapped buffers
constexpr auto kLookEvery = std::chrono::milliseconds(5);

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

std::size_t mix(std::size_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x9e3779b97f4a7c15u + (hash >> 29);
}

struct Packet {
  PacketKind kind = PacketKind::eager;
  std::uint32_t sender = 0, receiver = 0;
  MessageTag tag;
  Signature signature;
  std::int64_t total = 0;   // bytes of the message
  std::int64_t offset = 0;  // data: offset of this piece
  std::int64_t bytes = 0;   // bytes that follow in this packet
  Location location;
};

constexpr std::size_t kHeaderBytes = 128;
constexpr auto kPayloadBytes = static_cast<std::int64_t>(kSlotBytes - kHeaderBytes);
static_assert(sizeof(Packet) <= kHeaderBytes);

// `head` counts the packets that the sender has written, `tail` those that the receiver has read.
// Both wrap.
struct Ring {
  alignas(64) std::atomic<std::uint32_t> head{0};
  alignas(64) std::atomic<std::uint32_t> tail{0};
  alignas(4096) std::byte slots[kSlots][kSlotBytes];

  bool empty() const { return head.load() == tail.load(); }
  bool full() const { return head.load() - tail.load() == kSlots; }
};

struct Send {
  int peer = -1;
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;
  Completion* completion = nullptr;
  // Set once the message is accepted:
  std::uint32_t receiver = 0;
  std::byte* target = nullptr;  // null: streamed
  Location target_location;
  std::int64_t done = 0;
};

struct Receive {
  int peer = -1;
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  Completion* completion = nullptr;
  std::int64_t done = 0;
};

struct Unexpected {
  int peer = -1;
  Packet packet;
  std::vector<std::byte> payload;
};

struct Outgoing {
  Packet packet;
  const std::byte* payload = nullptr;
  Completion* completion = nullptr;
};

struct Match {
  int peer = -1;
  MessageTag tag;
  friend bool operator==(const Match&, const Match&) = default;
};

struct KeyHash {
  std::size_t operator()(const OperationKey& key) const { return mix(key.group, key.sequence); }
};

struct MatchHash {
  std::size_t operator()(const Match& m) const {
    return mix(mix(KeyHash{}(m.tag.operation), m.tag.ordinal), static_cast<std::uint64_t>(m.peer));
  }
};

struct Peer {
  std::deque<Outgoing> outbox;         // packets that wait for room in the ring
  std::deque<std::uint32_t> accepted;  // ids of sends being written or streamed
  int pending = 0;                     // unfinished posts with this peer
};

// A receive that loads from the sender's memory.
struct Pull {
  Receive receive;
  Location location;
  std::uint32_t sender = 0;
};

class PacketEndpoint final : public ShmEndpoint {
 public:
  explicit PacketEndpoint(std::unique_ptr<ShmHost> host)
      : host_(std::move(host)), peers_(at(host_->size())) {}

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string name() const override { return "shm"; }
  int rails() const override { return 1; }
  std::int64_t eager_bytes() const override { return kPayloadBytes; }

  void begin(OperationKey key, const Signature& signature) override;
  void end(OperationKey key) override { begun_.erase(key); }
  void post_send(int peer, MessageTag tag, const void* data, std::int64_t bytes,
                 Completion& completion) override;
  void post_receive(int peer, MessageTag tag, void* data, std::int64_t bytes,
                    Completion& completion) override;
  bool progress() override;
  void sleep(int microseconds) override;
  std::unique_ptr<MemoryRegion> register_memory(void*, std::int64_t) override {
    return std::make_unique<MemoryRegion>();
  }
  EndpointStatistics statistics() const override { return statistics_; }
  bool ready() const override;

 private:
  // Zero bytes are an empty ring, so no rank has to wait until another constructs it.
  Ring& ring(int from, int to) const {
    return *reinterpret_cast<Ring*>(host_->mailboxes(from) + at(to) * sizeof(Ring));
  }
  bool drain(int peer);
  void arrive(int peer, const Packet& packet, const std::byte* payload);
  void arrive_message(int peer, const Packet& packet, const std::byte* payload);
  void check_signature(int peer, const Packet& packet, const Signature& own) const;
  void deliver(int peer, const Packet& packet, const std::byte* payload, const Receive& receive);
  void finish_receive(std::uint32_t id);
  bool put(int peer, const Packet& packet, const std::byte* payload);
  void enqueue(int peer, const Packet& packet, const void* payload, Completion* completion);
  bool flush(int peer);
  bool stream(int peer);
  bool write(int peer, Send& send);
  bool pull();
  void check_peers();

  std::unique_ptr<ShmHost> host_;
  std::vector<Peer> peers_;
  std::unordered_map<OperationKey, Signature, KeyHash> begun_;
  std::unordered_map<OperationKey, std::vector<Unexpected>, KeyHash> early_;
  std::unordered_map<Match, Receive, MatchHash> receives_;
  std::unordered_map<Match, Unexpected, MatchHash> unexpected_;
  std::unordered_map<std::uint32_t, Send> sends_;        // offered, by id
  std::unordered_map<std::uint32_t, Receive> accepted_;  // being written or streamed, by id
  std::vector<Pull> pulls_;
  std::uint32_t next_id_ = 1;
  Clock::time_point next_look_{};
  EndpointStatistics statistics_;
};

void PacketEndpoint::begin(OperationKey key, const Signature& signature) {
  begun_[key] = signature;
  const auto found = early_.find(key);
  if (found == early_.end()) return;
  const std::vector<Unexpected> messages = std::move(found->second);
  early_.erase(found);
  for (const Unexpected& m : messages) arrive_message(m.peer, m.packet, m.payload.data());
}

void PacketEndpoint::post_send(int peer, MessageTag tag, const void* data, std::int64_t bytes,
                               Completion& completion) {
  SHOAL_ASSERT(peer != rank() && begun_.contains(tag.operation));
  Packet packet;
  packet.tag = tag;
  packet.signature = begun_.at(tag.operation);
  packet.total = bytes;
  statistics_.bytes_sent += bytes;
  ++completion.pending;
  ++peers_[at(peer)].pending;
  if (bytes <= kPayloadBytes) {
    ++statistics_.eager_messages;
    packet.bytes = bytes;
    enqueue(peer, packet, data, &completion);
    return;
  }
  ++statistics_.rendezvous_messages;
  packet.kind = PacketKind::offer;
  packet.sender = next_id_++;
  packet.location = host_->locate(data, bytes);
  sends_[packet.sender] = {
      peer, static_cast<const std::byte*>(data), bytes, &completion, 0, nullptr, {}, 0};
  enqueue(peer, packet, nullptr, nullptr);
}

void PacketEndpoint::post_receive(int peer, MessageTag tag, void* data, std::int64_t bytes,
                                  Completion& completion) {
  SHOAL_ASSERT(peer != rank() && begun_.contains(tag.operation));
  statistics_.bytes_received += bytes;
  ++completion.pending;
  ++peers_[at(peer)].pending;
  const Match match{peer, tag};
  const Receive receive{peer, static_cast<std::byte*>(data), bytes, &completion, 0};
  const auto found = unexpected_.find(match);
  if (found == unexpected_.end()) {
    receives_[match] = receive;
    return;
  }
  const Unexpected message = std::move(found->second);
  unexpected_.erase(found);
  deliver(peer, message.packet, message.payload.data(), receive);
}

bool PacketEndpoint::progress() {
  bool moved = false;
  for (int hop = 1; hop < size(); ++hop) {
    const int peer = (rank() + hop) % size();
    moved = drain(peer) || moved;
    moved = flush(peer) || moved;
    moved = stream(peer) || moved;
  }
  moved = pull() || moved;
  if (!moved) check_peers();
  return moved;
}

bool PacketEndpoint::ready() const {
  if (!pulls_.empty()) return true;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    if (!ring(peer, rank()).empty()) return true;
    const Peer& p = peers_[at(peer)];
    if ((!p.outbox.empty() || !p.accepted.empty()) && !ring(rank(), peer).full()) return true;
  }
  return false;
}

void PacketEndpoint::sleep(int microseconds) {
  RankPage& own = host_->page(rank());
  // As in Backoff::pause: announce, read the bell, poll once more.
  own.sleepers.fetch_add(1);
  const std::uint32_t bell = own.doorbell.load();
  if (!ready()) {
    const timespec limit{microseconds / 1000000, microseconds % 1000000 * 1000L};
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&own.doorbell), FUTEX_WAIT, bell, &limit,
            nullptr, 0);
  }
  own.sleepers.fetch_sub(1);
}

// Reads the packets in the ring from that peer; at most kSlots, so that other peers get their turn.
bool PacketEndpoint::drain(int peer) {
  Ring& from = ring(peer, rank());
  std::uint32_t tail = from.tail.load(std::memory_order_relaxed);
  std::size_t number = 0;
  for (; number < kSlots && from.head.load() != tail; ++number, ++tail) {
    const std::byte* slot = from.slots[tail % kSlots];
    Packet packet;
    std::memcpy(&packet, slot, sizeof packet);
    if (packet.bytes < 0 || packet.bytes > kPayloadBytes)
      throw_error(ErrorCode::corrupt_data, "shm: a packet of {} bytes from rank {}", packet.bytes,
                  peer);
    arrive(peer, packet, slot + kHeaderBytes);
    from.tail.store(tail + 1);
  }
  if (number > 0) wake(host_->page(peer));  // the peer may wait for room
  return number > 0;
}

void PacketEndpoint::arrive(int peer, const Packet& packet, const std::byte* payload) {
  switch (packet.kind) {
    case PacketKind::eager:
    case PacketKind::offer:
      return arrive_message(peer, packet, payload);
    case PacketKind::accept: {
      Send& send = sends_.at(packet.sender);
      send.receiver = packet.receiver;
      send.target_location = packet.location;
      peers_[at(peer)].accepted.push_back(packet.sender);
      return;
    }
    case PacketKind::data: {
      Receive& receive = accepted_.at(packet.receiver);
      if (packet.offset < 0 || packet.offset + packet.bytes > receive.bytes)
        throw_error(ErrorCode::corrupt_data, "shm: bytes {} to {} of a message of {} from rank {}",
                    packet.offset, packet.offset + packet.bytes, receive.bytes, peer);
      std::memcpy(receive.data + packet.offset, payload, static_cast<std::size_t>(packet.bytes));
      receive.done += packet.bytes;
      if (receive.done == receive.bytes) finish_receive(packet.receiver);
      return;
    }
    case PacketKind::written:
      return finish_receive(packet.receiver);
    case PacketKind::taken: {
      const auto found = sends_.find(packet.sender);
      --found->second.completion->pending;
      --peers_[at(peer)].pending;
      sends_.erase(found);
      return;
    }
  }
}

void PacketEndpoint::arrive_message(int peer, const Packet& packet, const std::byte* payload) {
  const auto keep = [&] { return Unexpected{peer, packet, {payload, payload + packet.bytes}}; };
  const auto begun = begun_.find(packet.tag.operation);
  if (begun == begun_.end()) {
    ++statistics_.unexpected;
    early_[packet.tag.operation].push_back(keep());
    return;
  }
  check_signature(peer, packet, begun->second);
  const Match match{peer, packet.tag};
  const auto found = receives_.find(match);
  if (found == receives_.end()) {
    ++statistics_.unexpected;
    unexpected_[match] = keep();
    return;
  }
  const Receive receive = found->second;
  receives_.erase(found);
  deliver(peer, packet, payload, receive);
}

void PacketEndpoint::check_signature(int peer, const Packet& packet, const Signature& own) const {
  if (packet.signature == own) return;
  const int here = host_->member(rank()), there = host_->member(peer);
  const std::string called = describe(as_called(own, here, there));
  throw Error(ErrorCode::mismatch,
              fmt::format("ranks called different operations: rank {} called {}, rank {} called {}",
                          here, called, there, describe(as_called(packet.signature, there, here))),
              "let a send and its recv, or a collective on every rank, agree")
      .at_rank(here)
      .with_peer(there)
      .in_operation(called);
}

void PacketEndpoint::deliver(int peer, const Packet& packet, const std::byte* payload,
                             const Receive& receive) {
  if (packet.total != receive.bytes)
    throw Error(
        ErrorCode::mismatch,
        fmt::format("rank {} sent a message of {} bytes, rank {} expects {}", host_->member(peer),
                    packet.total, host_->member(rank()), receive.bytes))
        .at_rank(host_->member(rank()))
        .with_peer(host_->member(peer))
        .in_operation(describe(packet.signature));
  if (packet.kind == PacketKind::eager) {
    if (packet.bytes > 0)
      std::memcpy(receive.data, payload, static_cast<std::size_t>(packet.bytes));
    --receive.completion->pending;
    --peers_[at(peer)].pending;
    return;
  }
  if (packet.location.symmetric()) {
    pulls_.push_back({receive, packet.location, packet.sender});
    return;
  }
  Packet accept;
  accept.kind = PacketKind::accept;
  accept.sender = packet.sender;
  accept.receiver = next_id_++;
  accept.location = host_->locate(receive.data, receive.bytes);
  accepted_[accept.receiver] = receive;
  enqueue(peer, accept, nullptr, nullptr);
}

void PacketEndpoint::finish_receive(std::uint32_t id) {
  const auto found = accepted_.find(id);
  --found->second.completion->pending;
  --peers_[at(found->second.peer)].pending;
  accepted_.erase(found);
}

// Copies a packet into the ring to that peer; false if there is no room.
bool PacketEndpoint::put(int peer, const Packet& packet, const std::byte* payload) {
  Ring& to = ring(rank(), peer);
  const std::uint32_t head = to.head.load(std::memory_order_relaxed);
  if (head - to.tail.load() == kSlots) return false;
  std::byte* slot = to.slots[head % kSlots];
  std::memcpy(slot, &packet, sizeof packet);
  if (packet.bytes > 0)
    std::memcpy(slot + kHeaderBytes, payload, static_cast<std::size_t>(packet.bytes));
  to.head.store(head + 1);
  wake(host_->page(peer));
  return true;
}

void PacketEndpoint::enqueue(int peer, const Packet& packet, const void* payload,
                             Completion* completion) {
  peers_[at(peer)].outbox.push_back({packet, static_cast<const std::byte*>(payload), completion});
  flush(peer);
}

bool PacketEndpoint::flush(int peer) {
  Peer& p = peers_[at(peer)];
  bool moved = false;
  while (!p.outbox.empty()) {
    const Outgoing& next = p.outbox.front();
    if (!put(peer, next.packet, next.payload)) break;
    if (next.completion) {
      --next.completion->pending;
      --p.pending;
    }
    p.outbox.pop_front();
    moved = true;
  }
  return moved;
}

// Sends a piece of the first accepted message to that peer, as much as there is room for.
bool PacketEndpoint::stream(int peer) {
  Peer& p = peers_[at(peer)];
  if (p.accepted.empty() || !p.outbox.empty()) return false;
  const std::uint32_t id = p.accepted.front();
  Send& send = sends_.at(id);
  const std::int64_t before = send.done;
  if (send.target_location.symmetric()) {
    if (!write(peer, send)) return false;
  } else {
    Packet packet;
    packet.kind = PacketKind::data;
    packet.receiver = send.receiver;
    while (send.done < send.bytes) {
      packet.offset = send.done;
      packet.bytes = std::min(kPayloadBytes, send.bytes - send.done);
      if (!put(peer, packet, send.data + send.done)) break;
      send.done += packet.bytes;
    }
    statistics_.staged_bytes += send.done - before;
  }
  if (send.done < send.bytes) return send.done > before;
  --send.completion->pending;
  --p.pending;
  sends_.erase(id);
  p.accepted.pop_front();
  return true;
}

// Writes one piece straight into the receiver's buffer; false while the buffer is not mapped yet.
bool PacketEndpoint::write(int peer, Send& send) {
  if (!send.target) send.target = host_->resolve(peer, send.target_location);
  if (!send.target) return false;
  const std::int64_t bytes = std::min(kPieceBytes, send.bytes - send.done);
  std::memcpy(send.target + send.done, send.data + send.done, static_cast<std::size_t>(bytes));
  send.done += bytes;
  if (send.done < send.bytes) return true;
  Packet packet;
  packet.kind = PacketKind::written;
  packet.receiver = send.receiver;
  enqueue(peer, packet, nullptr, nullptr);
  return true;
}

// Loads one piece of every message that this rank reads from its sender's buffer.
bool PacketEndpoint::pull() {
  bool moved = false;
  for (Pull& p : pulls_) {
    Receive& r = p.receive;
    const std::byte* source = host_->resolve(r.peer, p.location);
    if (!source) continue;
    const std::int64_t bytes = std::min(kPieceBytes, r.bytes - r.done);
    std::memcpy(r.data + r.done, source + r.done, static_cast<std::size_t>(bytes));
    r.done += bytes;
    moved = true;
    if (r.done < r.bytes) continue;
    Packet taken;
    taken.kind = PacketKind::taken;
    taken.sender = p.sender;
    enqueue(r.peer, taken, nullptr, nullptr);
    --r.completion->pending;
    --peers_[at(r.peer)].pending;
  }
  std::erase_if(pulls_, [](const Pull& p) { return p.receive.done == p.receive.bytes; });
  return moved;
}

// Fails if a peer with unfinished posts is gone. Packets that it wrote before it left still count;
// progress() reads them first.
void PacketEndpoint::check_peers() {
  const auto now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLookEvery;
  for (int peer = 0; peer < size(); ++peer) {
    if (peers_[at(peer)].pending == 0) continue;
    const std::string fate = host_->fate(peer);
    if (fate.empty() || !ring(peer, rank()).empty()) continue;
    throw Error(ErrorCode::peer_lost, fmt::format("rank {} {}", host_->member(peer), fate),
                "look at that rank's own output for the cause")
        .at_rank(host_->member(rank()))
        .with_peer(host_->member(peer));
  }
}

}  // namespace

std::size_t shm_mailbox_bytes(int size) { return at(size) * sizeof(Ring); }

std::unique_ptr<ShmEndpoint> make_shm_endpoint(std::unique_ptr<ShmHost> host) {
  return std::make_unique<PacketEndpoint>(std::move(host));
}

}  // namespace shoal::collectives::transport
