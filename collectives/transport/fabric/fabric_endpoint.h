// The message protocol over a set of rails. See fabric.h for its purpose.
//
//   eager       One send carries header and payload into one of the peer's message buffers.
//   rendezvous  Once its receive is posted, the receiver sends a grant (address, keys, id). The
//               sender writes segments straight into the receive buffer, each with the id as its
//               data. The receiver counts them, because they arrive in any order.
//
// Over tcp, eager messages and the grants of small messages go through sockets if possible
// (socket_lane.h). They need no credits.
//
// Two limits protect a slow receiver:
//   credits     One credit stands for one buffer that a rail of the receiver reserves for the
//               sender; each message in flight spends one. The last credit of a rail may only
//               return credits, so two ranks that have spent all others can still return theirs.
//   unmatched   The receiver copies eager messages without a posted receive aside, up to a limit.
//               Beyond it, the sender announces small messages and waits for grants, as for large
//               ones.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/collectives/transport/fabric/registration.h"
#include "shoal/collectives/transport/fabric/socket_lane.h"
#include "shoal/collectives/transport/fabric/striping.h"
#include "shoal/collectives/transport/fabric/wire.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::fabric {

struct Route {  // one way to a peer: from one of this rank's rails to one of the peer's
  int rail = 0, peer_rail = 0;
  fi_addr_t address = FI_ADDR_UNSPEC;
};

struct PeerSetup {
  std::vector<Route> routes;    // for messages that this rank sends
  int peer_rails = 0;           // number of the peer's rails
  std::vector<int> arrives_on;  // this rank's rails that the peer's routes lead to
  bool writes = false;          // remote writes work in both directions
};

struct FabricSetup {
  int rank = 0, size = 1;
  std::uint32_t magic = 0;
  std::string name;
  std::vector<std::unique_ptr<Rail>> rails;
  std::unique_ptr<SocketLane> lane;  // null: all messages use the rails
  std::vector<PeerSetup> peers;      // by rank
  std::int64_t eager_bytes = 0;      // agreed by all
  std::int64_t largest_write = 0;    // agreed by all
  std::int64_t stripe_bytes = 0;     // agreed by all
  int credits = 0, unmatched = 0;    // agreed by all
  std::size_t idle_registrations = 0;
  std::string device_memory_problem;  // returned by Endpoint::device_memory_problem
  std::uint32_t first_receive_id = 0;
};

struct MatchKey {
  int peer = -1;
  transport::MessageTag tag;
  friend bool operator==(const MatchKey&, const MatchKey&) = default;
};
struct KeyHash {
  static std::size_t mix(std::size_t hash, std::uint64_t value) {
    return (hash ^ value) * 0x9e3779b97f4a7c15u + (hash >> 29);
  }
  std::size_t operator()(const transport::OperationKey& key) const {
    return mix(mix(0, key.group), key.sequence);
  }
  std::size_t operator()(const MatchKey& key) const {
    return mix(mix((*this)(key.tag.operation), key.tag.ordinal),
               static_cast<std::uint64_t>(key.peer));
  }
};

class FabricEndpoint final : public transport::Endpoint {
 public:
  explicit FabricEndpoint(FabricSetup setup);
  ~FabricEndpoint() override;

  int rank() const override { return setup_.rank; }
  int size() const override { return setup_.size; }
  std::string name() const override { return setup_.name; }
  int rails() const override { return static_cast<int>(setup_.rails.size()); }
  std::int64_t eager_bytes() const override { return setup_.eager_bytes; }
  void begin(transport::OperationKey key, const Signature& signature) override;
  void end(transport::OperationKey key) override;
  void post_send(int peer, transport::MessageTag tag, const void* data, std::int64_t bytes,
                 transport::Completion& completion) override;
  void post_receive(int peer, transport::MessageTag tag, void* data, std::int64_t bytes,
                    transport::Completion& completion) override;
  bool progress() override;
  bool sending() const override;
  void abandon() override { abandoned_ = true; }
  bool must_be_polled() const override;
  void sleep(int microseconds) override;
  std::unique_ptr<transport::MemoryRegion> register_memory(void* data, std::int64_t bytes) override;
  std::string device_memory_problem() const override { return setup_.device_memory_problem; }
  std::unique_ptr<transport::MemoryRegion> register_device_memory(void* data,
                                                                  std::int64_t bytes) override;
  transport::EndpointStatistics statistics() const override;

 private:
  struct Outgoing {  // a send by rendezvous
    int peer = -1;
    transport::MessageTag tag;
    const std::byte* data = nullptr;
    std::int64_t bytes = 0;
    transport::Completion* completion = nullptr;
    std::int64_t outstanding = 0;  // unfinished segments
    bool started = false;
    Clock::time_point announce_at;  // for a large message that has no grant by then
    RegistrationCache::Use use;
  };
  struct Incoming {
    int peer = -1;
    transport::MessageTag tag;
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
    transport::Completion* completion = nullptr;
    std::uint32_t id = 0;
    std::int64_t segments = 0, remaining = 0;  // once granted
    bool granted = false, on_rails = false;    // on_rails: no socket to the peer when posted
    RegistrationCache::Use use;
  };
  struct Grant {
    MessageHeader header;
    std::vector<std::uint64_t> words;  // address, keys
  };
  struct Message {  // waits for a credit and a buffer; its payload is `words` or `data`
    MessageHeader header;
    std::vector<std::uint64_t> words;
    const std::byte* data = nullptr;
    std::int64_t bytes = 0;
    transport::Completion* completion = nullptr;  // eager: counted down once the payload is copied
    Outgoing* part_of = nullptr;                  // segment
  };
  struct Write {
    Outgoing* message = nullptr;
    std::int64_t offset = 0, bytes = 0;
    const Route* route = nullptr;
    std::uint64_t address = 0, key = 0;
    std::uint32_t id = 0;
  };
  struct Peer {
    std::vector<int> credits;  // by the peer's rail
    std::vector<int> owed;     // by this rank's rail: credits to return to the peer
    int unmatched_left = 0;    // eager messages that may still be sent ahead of its receives
    int matched_owed = 0;      // matched messages that the peer has not been told of
    int posts = 0;             // unfinished
    unsigned next_route = 0, next_stripe = 0;
    bool lost = false, owing = false, waits = false;
    std::string why_lost;
    std::deque<Message> waiting;
  };
  struct Unexpected {
    Signature signature;
    std::vector<std::byte> payload;
  };

  Peer& peer_at(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const PeerSetup& setup_of(int rank) const { return setup_.peers[static_cast<std::size_t>(rank)]; }
  Rail& rail_at(int rail) { return *setup_.rails[static_cast<std::size_t>(rail)]; }
  StripingRule rule_towards(std::size_t routes) const;
  MessageHeader header_of(MessageKind kind, transport::MessageTag tag) const;
  const Signature& signature_of(transport::OperationKey key) const;

  // endpoint.cc: matching
  bool refuse_lost(int peer);
  void finish(Incoming& incoming);
  void finish(Outgoing& outgoing);
  bool refuse_on_device(const Incoming& incoming);
  bool lengths_agree(int peer, const Signature& signature, std::int64_t theirs, std::int64_t ours);
  bool same_operation(const MessageHeader& header);
  void take_eager(const MessageHeader& header, const std::byte* payload);
  void take_grant(const MessageHeader& header, const std::byte* payload, std::size_t bytes);
  void take_announce(const MessageHeader& header);
  void take_segment(const MessageHeader& header, const std::byte* payload, std::size_t bytes);
  void take_write(std::uint32_t id, int rail, Transfer* receive);
  void grant(Incoming& incoming);
  void start(Outgoing& outgoing, const Grant& grant);
  void announce(Outgoing& outgoing);

  // flow.cc: credits, queues, completions
  void submit(int peer, Message message);
  bool dispatch(int peer, Message& message);
  bool dispatch_by_lane(int peer, Message& message);
  int& put_returns(Peer& to, MessageHeader& header) const;
  bool poll_lane();
  bool rails_are_due() const;
  void copied(Peer& to, const Message& message);
  void handle(int rail, RailEvent& event);
  void take_message(int rail, const std::byte* data, std::size_t bytes);
  void take_failure(int rail, const RailEvent& event);
  void lose(int peer, bool data_lost, const std::string& why);
  void note_owing(int peer);
  bool flush_owing();
  bool flush_waiting();
  bool flush_writes();
  void flush_grants();
  void announce_stalled();
  void fail(Error error) { failures_.push_back(std::move(error)); }

  FabricSetup setup_;
  RegistrationCache cache_;
  std::vector<Peer> peers_;
  std::vector<RailEvent> events_;
  std::vector<std::deque<Write>> writes_;  // by rail
  std::vector<int> waiting_peers_, owing_peers_;
  std::deque<Error> failures_;

  std::unordered_map<transport::OperationKey, Signature, KeyHash> begun_;
  std::unordered_map<transport::OperationKey, std::vector<std::pair<int, Signature>>, KeyHash>
      early_;
  std::unordered_map<MatchKey, Outgoing, KeyHash> outgoing_;
  std::unordered_map<MatchKey, Incoming, KeyHash> incoming_;
  std::unordered_map<std::uint32_t, Incoming*> granted_;
  std::unordered_map<MatchKey, Unexpected, KeyHash> unexpected_;
  std::unordered_map<MatchKey, Grant, KeyHash> early_grants_;
  std::unordered_map<MatchKey, std::int64_t, KeyHash> announced_;  // bytes of small messages
  std::deque<MatchKey> waiting_grants_;
  std::int64_t granted_segments_ = 0;
  std::uint32_t next_receive_id_;
  bool can_poll_ = false;
  int rails_left_out_ = 0;     // consecutive polls without the rails
  int expected_on_rails_ = 0;  // entries of incoming_ with on_rails
  Clock::time_point last_stall_check_;
  bool abandoned_ = false;
  transport::EndpointStatistics statistics_;
};

}  // namespace shoal::collectives::fabric
