// An endpoint: the operations that its user has posted and the packets that have arrived for it.
// Its libfabric call tables are in endpoint_calls.cc.
//
// A message or write completes when its receiver confirms it. A message is confirmed once a posted
// receive took it; until then the receiver is "not ready" and the message waits. A write is
// confirmed once all its bytes are in place.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "info.h"
#include "link.h"
#include "queue.h"
#include "wire.h"
#include <rdma/fi_endpoint.h>

namespace shoal::test::efa {

struct Addresses;
struct Domain;

// One send or write, as posted.
struct Post {
  PacketKind kind = PacketKind::message;
  const void* bytes = nullptr;
  std::size_t total = 0;
  void* descriptor = nullptr;
  fi_addr_t to = FI_ADDR_UNSPEC;
  std::uint64_t address = 0, key = 0;  // for writes
  std::optional<std::uint64_t> data;   // immediate
  void* context = nullptr;
  std::uint64_t flags = 0;  // FI_INJECT, FI_COMPLETION
};

class Endpoint : public fid_ep {
 public:
  Endpoint(Domain& domain, const fi_info& info);
  ~Endpoint();

  int bind(fid_t object, std::uint64_t flags);
  int enable();
  // Waits until peers have acknowledged all packets, for at most a tenth of a second.
  void close();
  int name(void* buffer, std::size_t* bytes) const;
  int option(int name, void* value, std::size_t* bytes) const;
  int set_option(int name, const void* value, std::size_t bytes) const;
  std::uint64_t default_flags() const { return default_flags_; }

  // Returns 0 or a negative error: EAGAIN, EINVAL, EMSGSIZE, EOPBADSTATE.
  ssize_t post(const Post& wanted);
  ssize_t post_receive(void* buffer, std::size_t bytes, void* descriptor, void* context);
  ssize_t cancel(void* context);

  // Does all of the endpoint's work: when a queue is read (efa), and each millisecond as well
  // (efa-direct). Called with the domain's mutex locked.
  void progress();
  // The card's own work each millisecond: all of progress() (efa-direct), or only the repetition of
  // lost packets (efa).
  void progress_of_the_card();

  Domain& domain;

 private:
  struct Sending {
    std::uint64_t operation = 0;
    Post post;
    Peer* peer = nullptr;
    std::array<std::byte, kInjectBytes> injected{};
    std::uint32_t number = 0;
    std::uint64_t next = 0;            // offset of the first byte that is not yet in `ahead`
    std::vector<std::uint64_t> ahead;  // offsets of fragments that may leave next
    bool has_fragments() const { return !ahead.empty() || next < post.total; }
  };
  struct Receive {
    std::byte* buffer = nullptr;
    std::size_t bytes = 0;
    void* descriptor = nullptr;
    void* context = nullptr;
  };
  struct Arriving {  // a message or write with some fragments still missing
    std::uint64_t come = 0;
    Status status = Status::ok;
    std::vector<std::byte> bytes;  // message
  };
  struct Arrived {  // a complete message or write that waits for a posted receive
    Peer* from = nullptr;
    FragmentHeader header;
    PacketKind kind = PacketKind::message;
    std::vector<std::byte> bytes;  // message
  };
  struct InOrderMet {  // not by address in memory, so that runs are alike
    bool operator()(const Peer* a, const Peer* b) const { return a->number < b->number; }
  };
  struct Order {  // for send-after-send
    std::uint32_t next = 0;
    std::unordered_map<std::uint32_t, Arrived> early;
  };

  bool deaf();
  void on_packet(Peer& from, const PacketHeader& header, std::span<const std::byte> rest);
  void on_responses(std::span<const std::byte> rest);
  void on_fragment(Peer& from, PacketKind kind, const FragmentHeader& header,
                   std::span<const std::byte> bytes);
  Status place(const Peer& from, const FragmentHeader& header, std::span<const std::byte> bytes);
  void message_arrived(Arrived arrived);
  void write_arrived(Peer& from, const FragmentHeader& header, Status status);
  void match();
  void deliver(Arrived& arrived, const Receive& receive);
  void complete_remote_write(Peer& from, const FragmentHeader& header, void* context);
  void respond(Peer& to, std::uint64_t operation, Status status);
  void send_responses();
  void send_fragments();
  bool send_fragment(Sending& sending);
  bool local_memory_is_registered(const void* descriptor, const void* start, std::size_t bytes,
                                  std::uint64_t access) const;
  void finish(std::uint64_t operation, Status status);

  const bool direct_, in_order_, writes_take_receives_;
  const std::size_t transmit_size_, receive_size_, largest_message_, largest_write_;
  const std::uint64_t default_flags_;
  bool selective_transmit_ = false;
  Link link_;
  Addresses* addresses_ = nullptr;
  Queue *transmit_queue_ = nullptr, *receive_queue_ = nullptr;
  bool enabled_ = false, closing_ = false;
  Clock::time_point enabled_at_, looked_for_deaf_file_;
  bool deaf_ = false;

  std::uint64_t next_operation_ = 1;
  std::unordered_map<std::uint64_t, std::unique_ptr<Sending>> sendings_;
  std::vector<Sending*> with_fragments_;
  std::unordered_map<const Peer*, std::uint32_t> next_number_;

  std::deque<Receive> receives_;
  std::map<std::pair<const Peer*, std::uint64_t>, Arriving> arriving_;
  std::unordered_map<const Peer*, Order> orders_;
  std::vector<Arrived> waiting_;
  std::map<Peer*, std::vector<Response>, InOrderMet> responses_;
};

int open_endpoint(fid_domain* domain, fi_info* info, fid_ep** made, void* context);

}  // namespace shoal::test::efa
