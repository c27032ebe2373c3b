// Matches messages to posts.
#include <algorithm>
#include <cstring>

#include "shoal/collectives/transport/as_called.h"
#include "shoal/collectives/transport/fabric/fabric_endpoint.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::fabric {
namespace {

class KeptRegistration final : public transport::MemoryRegion {
 public:
  explicit KeptRegistration(RegistrationCache::Use use) : use_(std::move(use)) {}

 private:
  RegistrationCache::Use use_;
};

}  // namespace

void FabricEndpoint::begin(transport::OperationKey key, const Signature& signature) {
  begun_[key] = signature;
  const auto early = early_.find(key);
  if (early == early_.end()) return;
  const auto seen = std::move(early->second);
  early_.erase(early);
  for (const auto& [peer, theirs] : seen) {
    MessageHeader header = header_of(MessageKind::announce, {key, 0});
    header.source = static_cast<std::uint32_t>(peer);
    header.signature = theirs;
    same_operation(header);
  }
}

void FabricEndpoint::end(transport::OperationKey key) { begun_.erase(key); }

const Signature& FabricEndpoint::signature_of(transport::OperationKey key) const {
  const auto begun = begun_.find(key);
  SHOAL_ASSERT(begun != begun_.end());
  return begun->second;
}

MessageHeader FabricEndpoint::header_of(MessageKind kind, transport::MessageTag tag) const {
  MessageHeader header;
  header.magic = setup_.magic;
  header.kind = kind;
  header.source = static_cast<std::uint32_t>(setup_.rank);
  header.tag = tag;
  return header;
}

StripingRule FabricEndpoint::rule_towards(std::size_t routes) const {
  return {setup_.stripe_bytes, setup_.largest_write, static_cast<int>(routes)};
}

// A post to a lost peer fails at the next progress().
bool FabricEndpoint::refuse_lost(int peer) {
  const Peer& lost = peer_at(peer);
  if (!lost.lost) return false;
  fail(Error(ErrorCode::peer_lost,
             fmt::format("{}: rank {} is gone: {}", setup_.name, peer, lost.why_lost))
           .at_rank(setup_.rank)
           .with_peer(peer));
  return true;
}

void FabricEndpoint::post_send(int peer, transport::MessageTag tag, const void* data,
                               std::int64_t bytes, transport::Completion& completion) {
  SHOAL_ASSERT(peer >= 0 && peer < setup_.size && peer != setup_.rank && bytes >= 0);
  const Signature& signature = signature_of(tag.operation);
  Peer& to = peer_at(peer);
  ++completion.pending;
  if (refuse_lost(peer)) return;
  ++to.posts;
  statistics_.bytes_sent += bytes;
  const auto* from = static_cast<const std::byte*>(data);
  // An eager send copies the payload, which is impossible for device memory.
  if (bytes <= setup_.eager_bytes && to.unmatched_left > 0 && !cache_.is_device(data, bytes)) {
    ++statistics_.eager_messages;
    --to.unmatched_left;
    Message message;
    message.header = header_of(MessageKind::eager, tag);
    message.header.signature = signature;
    message.header.bytes = bytes;
    message.data = from;
    message.bytes = bytes;
    message.completion = &completion;
    return submit(peer, std::move(message));
  }
  ++statistics_.rendezvous_messages;
  const MatchKey key{peer, tag};
  const auto [place, fresh] = outgoing_.try_emplace(key);
  SHOAL_ASSERT(fresh);
  Outgoing& outgoing = place->second;
  outgoing.peer = peer;
  outgoing.tag = tag;
  outgoing.data = from;
  outgoing.bytes = bytes;
  outgoing.completion = &completion;
  outgoing.announce_at = Clock::now() + deadlines::kAnnounceAfter;
  if (const auto early = early_grants_.find(key); early != early_grants_.end()) {
    const Grant grant = std::move(early->second);
    early_grants_.erase(early);
    if (lengths_agree(peer, signature, grant.header.bytes, bytes)) start(outgoing, grant);
  } else if (bytes <= setup_.eager_bytes) {
    announce(outgoing);  // the receiver does not grant small messages by itself
  }
}

void FabricEndpoint::post_receive(int peer, transport::MessageTag tag, void* data,
                                  std::int64_t bytes, transport::Completion& completion) {
  SHOAL_ASSERT(peer >= 0 && peer < setup_.size && peer != setup_.rank && bytes >= 0);
  const Signature& signature = signature_of(tag.operation);
  ++completion.pending;
  const MatchKey key{peer, tag};
  const auto [place, fresh] = incoming_.try_emplace(key);
  SHOAL_ASSERT(fresh);
  Incoming& incoming = place->second;
  incoming.peer = peer;
  incoming.tag = tag;
  incoming.data = static_cast<std::byte*>(data);
  incoming.bytes = bytes;
  incoming.completion = &completion;
  incoming.on_rails = !setup_.lane || !setup_.lane->is_open(peer);
  expected_on_rails_ += incoming.on_rails;
  ++peer_at(peer).posts;
  if (const auto found = unexpected_.find(key); found != unexpected_.end()) {
    const Unexpected message = std::move(found->second);
    unexpected_.erase(found);
    ++peer_at(peer).matched_owed;
    note_owing(peer);
    if (!lengths_agree(peer, signature, static_cast<std::int64_t>(message.payload.size()), bytes))
      return;
    if (refuse_on_device(incoming)) return;
    if (bytes > 0) std::memcpy(data, message.payload.data(), message.payload.size());
    return finish(incoming);
  }
  if (refuse_lost(peer)) return;
  if (const auto found = announced_.find(key); found != announced_.end()) {
    const std::int64_t theirs = found->second;
    announced_.erase(found);
    if (!lengths_agree(peer, signature, theirs, bytes)) return;
    return grant(incoming);
  }
  if (bytes > setup_.eager_bytes) grant(incoming);
}

void FabricEndpoint::finish(Incoming& incoming) {
  statistics_.bytes_received += incoming.bytes;
  --incoming.completion->pending;
  --peer_at(incoming.peer).posts;
  expected_on_rails_ -= incoming.on_rails;
  if (incoming.granted) {
    granted_.erase(incoming.id);
    granted_segments_ -= incoming.segments;
  }
  incoming_.erase(MatchKey{incoming.peer, incoming.tag});
}

void FabricEndpoint::finish(Outgoing& outgoing) {
  --outgoing.completion->pending;
  --peer_at(outgoing.peer).posts;
  outgoing_.erase(MatchKey{outgoing.peer, outgoing.tag});
}

// Fails if an eager message arrives for a receive into device memory, which this thread cannot
// write. The caller has ignored eager_bytes().
bool FabricEndpoint::refuse_on_device(const Incoming& incoming) {
  if (!cache_.is_device(incoming.data, incoming.bytes)) return false;
  fail(
      Error(ErrorCode::internal,
            fmt::format("a message of {} bytes from host memory of rank {} was to be received into "
                        "device memory; those of {} bytes or less pass through the host",
                        incoming.bytes, incoming.peer, setup_.eager_bytes))
          .at_rank(setup_.rank)
          .with_peer(incoming.peer));
  return true;
}

bool FabricEndpoint::lengths_agree(int peer, const Signature& signature, std::int64_t theirs,
                                   std::int64_t ours) {
  if (theirs == ours) return true;
  fail(Error(ErrorCode::mismatch,
             fmt::format("{}: rank {} has {} bytes for a message of which rank {} has {}",
                         describe(signature), peer, theirs, setup_.rank, ours),
             "pass counts that agree on both ranks")
           .at_rank(setup_.rank)
           .with_peer(peer)
           .in_operation(describe(signature)));
  return false;
}

// Returns false and fails if the sender made another call under this key. If this rank has not
// begun the operation, keeps the signature until it begins it.
bool FabricEndpoint::same_operation(const MessageHeader& header) {
  const int peer = static_cast<int>(header.source);
  const transport::OperationKey key = header.tag.operation;
  const auto begun = begun_.find(key);
  if (begun == begun_.end()) {
    // A large message's announcement is not kept: the message may have been received since, and its
    // key reused. A sender that still waits announces it again.
    if (header.kind == MessageKind::announce && header.bytes > setup_.eager_bytes) return false;
    auto& seen = early_[key];
    const std::pair entry(peer, header.signature);
    if (std::ranges::find(seen, entry) == seen.end()) seen.push_back(entry);
    return true;
  }
  const Signature& own = begun->second;
  if (header.signature == own) return true;
  const std::string called = describe(transport::as_called(own, setup_.rank, peer));
  fail(Error(ErrorCode::mismatch,
             fmt::format("ranks called different operations: rank {} called {}, rank {} called {}",
                         setup_.rank, called, peer,
                         describe(transport::as_called(header.signature, peer, setup_.rank))),
             "call the same operations in the same order on every rank")
           .at_rank(setup_.rank)
           .with_peer(peer)
           .in_operation(called));
  return false;
}

void FabricEndpoint::take_eager(const MessageHeader& header, const std::byte* payload) {
  const int peer = static_cast<int>(header.source);
  if (!same_operation(header)) return;
  const MatchKey key{peer, header.tag};
  const auto found = incoming_.find(key);
  if (found == incoming_.end()) {
    ++statistics_.unexpected;
    unexpected_[key] = {header.signature, {payload, payload + header.bytes}};
    return;
  }
  ++peer_at(peer).matched_owed;
  Incoming& incoming = found->second;
  if (!lengths_agree(peer, header.signature, header.bytes, incoming.bytes)) return;
  if (refuse_on_device(incoming)) return;
  if (header.bytes > 0) std::memcpy(incoming.data, payload, static_cast<std::size_t>(header.bytes));
  finish(incoming);
}

void FabricEndpoint::take_grant(const MessageHeader& header, const std::byte* payload,
                                std::size_t bytes) {
  const int peer = static_cast<int>(header.source);
  const auto words = 1 + static_cast<std::size_t>(setup_of(peer).peer_rails);
  if (bytes != words * sizeof(std::uint64_t) || !same_operation(header)) return;
  Grant grant{header, std::vector<std::uint64_t>(words)};
  std::memcpy(grant.words.data(), payload, bytes);
  const MatchKey key{peer, header.tag};
  const auto found = outgoing_.find(key);
  if (found == outgoing_.end()) {
    early_grants_[key] = std::move(grant);
    return;
  }
  Outgoing& outgoing = found->second;
  if (outgoing.started) return;
  if (lengths_agree(peer, header.signature, header.bytes, outgoing.bytes)) start(outgoing, grant);
}

void FabricEndpoint::take_announce(const MessageHeader& header) {
  const int peer = static_cast<int>(header.source);
  // A large message's announcement serves only to compare calls; its receive is granted anyway.
  if (!same_operation(header)) return;
  const MatchKey key{peer, header.tag};
  const auto found = incoming_.find(key);
  if (found == incoming_.end()) {
    if (header.bytes <= setup_.eager_bytes) announced_[key] = header.bytes;
    return;
  }
  Incoming& incoming = found->second;
  if (!lengths_agree(peer, header.signature, header.bytes, incoming.bytes)) return;
  if (!incoming.granted && header.bytes <= setup_.eager_bytes) grant(incoming);
}

void FabricEndpoint::grant(Incoming& incoming) {
  const MatchKey key{incoming.peer, incoming.tag};
  const PeerSetup& peer = setup_of(incoming.peer);
  // A message of 0 bytes counts as one empty segment.
  std::int64_t segments = 1;
  if (incoming.bytes > 0)
    segments = peer.writes ? count_segments(incoming.bytes, rule_towards(peer.arrives_on.size()))
                           : (incoming.bytes - 1) / setup_.eager_bytes + 1;
  // Each write of a peer takes an entry of a completion queue. Segments that travel as messages are
  // limited by credits instead.
  const std::int64_t queued = peer.writes ? segments : 0;
  if (queued > kRemoteWrites)
    throw_error(
        ErrorCode::unavailable,
        "{}: a message of {} bytes takes {} writes of at most {} bytes; {} fit a completion "
        "queue",
        setup_.name, incoming.bytes, segments, setup_.largest_write, kRemoteWrites);
  if (granted_segments_ + queued > kRemoteWrites) {
    waiting_grants_.push_back(key);
    return;
  }
  while (granted_.contains(next_receive_id_)) ++next_receive_id_;
  incoming.id = next_receive_id_++;
  incoming.granted = true;
  incoming.remaining = segments;
  incoming.segments = queued;
  granted_segments_ += queued;
  granted_[incoming.id] = &incoming;

  Message message;
  message.header = header_of(MessageKind::grant, incoming.tag);
  message.header.signature = signature_of(incoming.tag.operation);
  message.header.bytes = incoming.bytes;
  message.header.receive_id = incoming.id;
  message.words.resize(1 + setup_.rails.size());
  if (peer.writes && incoming.bytes > 0) {
    incoming.use = cache_.acquire(incoming.data, incoming.bytes, true);
    message.words[0] = incoming.use.address(0, incoming.data);
    for (std::size_t rail = 0; rail < setup_.rails.size(); ++rail)
      message.words[1 + rail] = incoming.use.key(static_cast<int>(rail));
  }
  submit(incoming.peer, std::move(message));
}

void FabricEndpoint::announce(Outgoing& outgoing) {
  outgoing.announce_at = Clock::now() + deadlines::kAnnounceAgain;
  Message message;
  message.header = header_of(MessageKind::announce, outgoing.tag);
  message.header.signature = signature_of(outgoing.tag.operation);
  message.header.bytes = outgoing.bytes;
  submit(outgoing.peer, std::move(message));
}

void FabricEndpoint::start(Outgoing& outgoing, const Grant& grant) {
  const PeerSetup& peer = setup_of(outgoing.peer);
  outgoing.started = true;
  if (!peer.writes || outgoing.bytes == 0) {
    outgoing.outstanding = outgoing.bytes == 0 ? 1 : (outgoing.bytes - 1) / setup_.eager_bytes + 1;
    const std::int64_t count = outgoing.outstanding;
    for (std::int64_t i = 0; i < count; ++i) {
      Message message;
      message.header = header_of(MessageKind::segment, outgoing.tag);
      message.header.receive_id = grant.header.receive_id;
      message.header.offset = i * setup_.eager_bytes;
      message.header.bytes = outgoing.bytes;
      message.data = outgoing.data + message.header.offset;
      message.bytes = std::min(setup_.eager_bytes, outgoing.bytes - message.header.offset);
      message.part_of = &outgoing;
      submit(outgoing.peer, std::move(message));
    }
    return;
  }
  const auto segments = cut_into_segments(outgoing.bytes, rule_towards(peer.routes.size()),
                                          peer_at(outgoing.peer).next_stripe++);
  outgoing.outstanding = static_cast<std::int64_t>(segments.size());
  if (rail_at(0).must_register_local() || cache_.is_device(outgoing.data, outgoing.bytes))
    outgoing.use = cache_.acquire(outgoing.data, outgoing.bytes, false);
  for (const Segment& segment : segments) {
    const Route& route = peer.routes[static_cast<std::size_t>(segment.rail)];
    writes_[static_cast<std::size_t>(route.rail)].push_back(
        {&outgoing, segment.offset, segment.bytes, &route,
         grant.words[0] + static_cast<std::uint64_t>(segment.offset),
         grant.words[1 + static_cast<std::size_t>(route.peer_rail)], grant.header.receive_id});
  }
}

void FabricEndpoint::take_segment(const MessageHeader& header, const std::byte* payload,
                                  std::size_t bytes) {
  const auto found = granted_.find(header.receive_id);
  if (found == granted_.end()) return;
  Incoming& incoming = *found->second;
  const auto length = static_cast<std::int64_t>(bytes);
  if (incoming.peer != static_cast<int>(header.source) || header.offset < 0 ||
      header.offset > incoming.bytes || length > incoming.bytes - header.offset)
    return;
  if (bytes > 0) std::memcpy(incoming.data + header.offset, payload, bytes);
  if (--incoming.remaining == 0) finish(incoming);
}

void FabricEndpoint::take_write(std::uint32_t id, int rail, Transfer* receive) {
  const auto found = granted_.find(id);
  if (receive) rail_at(rail).repost(receive);
  if (found == granted_.end()) {
    log::once(log::Level::warn, "fabric-stray-write",
              fmt::format("{}: a write for a receive that is not there", setup_.name));
    return;
  }
  Incoming& incoming = *found->second;
  if (receive) {
    ++peer_at(incoming.peer).owed[static_cast<std::size_t>(rail)];
    note_owing(incoming.peer);
  }
  if (--incoming.remaining == 0) finish(incoming);
}

std::unique_ptr<transport::MemoryRegion> FabricEndpoint::register_memory(void* data,
                                                                         std::int64_t bytes) {
  if (data == nullptr || bytes <= 0)
    return std::make_unique<KeptRegistration>(RegistrationCache::Use());
  return std::make_unique<KeptRegistration>(cache_.acquire(data, bytes, true));
}

std::unique_ptr<transport::MemoryRegion> FabricEndpoint::register_device_memory(
    void* data, std::int64_t bytes) {
  if (!setup_.device_memory_problem.empty())
    throw Error(ErrorCode::unavailable, setup_.device_memory_problem).at_rank(setup_.rank);
  return std::make_unique<KeptRegistration>(cache_.acquire(data, bytes, true, true));
}

transport::EndpointStatistics FabricEndpoint::statistics() const {
  transport::EndpointStatistics statistics = statistics_;
  statistics.registrations = cache_.misses();
  return statistics;
}

}  // namespace shoal::collectives::fabric
