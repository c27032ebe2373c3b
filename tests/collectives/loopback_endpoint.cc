#include "loopback_endpoint.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <fmt/format.h>

#include "shoal/collectives/transport/as_called.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::transport {
namespace {

enum class Kind : std::uint8_t {
  eager,    // the message itself
  ready,    // announces the receiver's buffer for a large message
  written,  // a large message is in the receiver's buffer
};

// A message in transit. The receiver compares `bytes`, and for `ready` the sender does.
struct Envelope {
  Kind kind = Kind::eager;
  int peer = -1;  // its sender
  MessageTag tag;
  Signature signature;
  std::int64_t bytes = 0;
  std::byte* target = nullptr;     // ready: where to write
  std::vector<std::byte> payload;  // eager
};

struct Match {
  int peer = -1;
  MessageTag tag;
  friend bool operator==(const Match&, const Match&) = default;
};

std::size_t mix(std::size_t hash, std::uint64_t value) {
  return (hash ^ value) * 0x9e3779b97f4a7c15u + (hash >> 29);
}
struct KeyHash {
  std::size_t operator()(const OperationKey& key) const { return mix(key.group, key.sequence); }
};
struct MatchHash {
  std::size_t operator()(const Match& m) const {
    return mix(mix(KeyHash{}(m.tag.operation), m.tag.ordinal), static_cast<std::uint64_t>(m.peer));
  }
};

}  // namespace

struct LoopbackFabric::Mailbox {
  std::mutex mutex;
  std::condition_variable arrival;
  std::deque<Envelope> envelopes;
  bool open = false;

  void put(Envelope envelope) {
    {
      const std::lock_guard lock(mutex);
      envelopes.push_back(std::move(envelope));
    }
    arrival.notify_one();
  }
};

LoopbackFabric::LoopbackFabric(int size, LoopbackOptions options) : options_(options) {
  for (int rank = 0; rank < size; ++rank) mailboxes_.push_back(std::make_unique<Mailbox>());
}
LoopbackFabric::~LoopbackFabric() = default;

namespace {

class LoopbackEndpoint final : public Endpoint {
 public:
  LoopbackEndpoint(std::shared_ptr<LoopbackFabric> fabric, int rank)
      : fabric_(std::move(fabric)), rank_(rank), own_(fabric_->mailbox(rank)) {}

  // The sender of a large message writes it under this mailbox's lock. Once the mailbox is closed,
  // no thread accesses this rank's buffers.
  ~LoopbackEndpoint() override {
    const std::lock_guard lock(own_.mutex);
    own_.open = false;
    own_.envelopes.clear();
  }

  int rank() const override { return rank_; }
  int size() const override { return fabric_->size(); }
  std::string name() const override { return "loopback"; }
  int rails() const override { return 1; }
  std::int64_t eager_bytes() const override { return fabric_->options().eager_bytes; }

  void begin(OperationKey key, const Signature& signature) override {
    {
      // Once a receive has been posted, peers may write into a buffer.
      const std::lock_guard lock(own_.mutex);
      own_.open = true;
    }
    begun_[key] = signature;
    const auto early = early_.find(key);
    if (early == early_.end()) return;
    for (Envelope& envelope : early->second) take(std::move(envelope));
    early_.erase(key);
  }

  void end(OperationKey key) override { begun_.erase(key); }

  void post_send(int peer, MessageTag tag, const void* data, std::int64_t bytes,
                 Completion& completion) override {
    Envelope envelope;
    envelope.peer = rank_;
    envelope.tag = tag;
    envelope.signature = begun_.at(tag.operation);
    envelope.bytes = bytes;
    statistics_.bytes_sent += bytes;
    if (bytes <= eager_bytes()) {
      const auto* from = static_cast<const std::byte*>(data);
      envelope.payload.assign(from, from + bytes);
      ++statistics_.eager_messages;
      fabric_->mailbox(peer).put(std::move(envelope));
      return;
    }
    ++statistics_.rendezvous_messages;
    ++completion.pending;
    const Match match{peer, tag};
    const auto ready = ready_.find(match);
    if (ready != ready_.end()) {
      write(ready->second, data, bytes, completion);
      ready_.erase(ready);
      return;
    }
    sends_[match] = {const_cast<void*>(data), bytes, &completion};
  }

  void post_receive(int peer, MessageTag tag, void* data, std::int64_t bytes,
                    Completion& completion) override {
    statistics_.bytes_received += bytes;
    ++completion.pending;
    const Match match{peer, tag};
    const auto arrived = unexpected_.find(match);
    if (arrived != unexpected_.end()) {
      deliver(arrived->second, {data, bytes, &completion});
      unexpected_.erase(arrived);
      return;
    }
    receives_[match] = {data, bytes, &completion};
    if (bytes <= eager_bytes()) return;
    Envelope envelope;
    envelope.kind = Kind::ready;
    envelope.peer = rank_;
    envelope.tag = tag;
    envelope.signature = begun_.at(tag.operation);
    envelope.bytes = bytes;
    envelope.target = static_cast<std::byte*>(data);
    fabric_->mailbox(peer).put(std::move(envelope));
  }

  bool progress() override {
    for (int taken = 0; taken < 64; ++taken) {
      std::optional<Envelope> envelope;
      {
        const std::lock_guard lock(own_.mutex);
        if (!own_.envelopes.empty()) {
          envelope = std::move(own_.envelopes.front());
          own_.envelopes.pop_front();
        }
      }
      if (!envelope) return taken > 0;
      const auto begun = begun_.find(envelope->tag.operation);
      if (begun == begun_.end())
        early_[envelope->tag.operation].push_back(std::move(*envelope));
      else
        take(std::move(*envelope));
    }
    return true;
  }

  void sleep(int microseconds) override {
    std::unique_lock lock(own_.mutex);
    own_.arrival.wait_for(lock, std::chrono::microseconds(microseconds),
                          [this] { return !own_.envelopes.empty(); });
  }

  std::unique_ptr<MemoryRegion> register_memory(void*, std::int64_t) override {
    ++statistics_.registrations;
    return std::make_unique<MemoryRegion>();
  }
  EndpointStatistics statistics() const override { return statistics_; }

 private:
  struct Post {
    void* data = nullptr;
    std::int64_t bytes = 0;
    Completion* completion = nullptr;
  };

  void take(Envelope envelope) {
    const Signature& own = begun_.at(envelope.tag.operation);
    if (envelope.signature != own) {
      const std::string called = describe(as_called(own, rank_, envelope.peer));
      throw Error(ErrorCode::mismatch,
                  fmt::format("ranks called different operations: rank {} called {}, rank {} "
                              "called {}",
                              rank_, called, envelope.peer,
                              describe(as_called(envelope.signature, envelope.peer, rank_))),
                  "call the same operations in the same order on every rank")
          .at_rank(rank_)
          .with_peer(envelope.peer)
          .in_operation(called);
    }
    const Match match{envelope.peer, envelope.tag};
    switch (envelope.kind) {
      case Kind::eager: {
        const auto receive = receives_.find(match);
        if (receive == receives_.end()) {
          ++statistics_.unexpected;
          unexpected_[match] = std::move(envelope);
          return;
        }
        deliver(envelope, receive->second);
        receives_.erase(receive);
        return;
      }
      case Kind::ready: {
        const auto send = sends_.find(match);
        if (send == sends_.end()) {
          ready_[match] = std::move(envelope);
          return;
        }
        const Post post = send->second;
        sends_.erase(send);
        write(envelope, post.data, post.bytes, *post.completion);
        return;
      }
      case Kind::written: {
        const auto receive = receives_.find(match);
        SHOAL_ASSERT(receive != receives_.end());
        --receive->second.completion->pending;
        receives_.erase(receive);
        return;
      }
    }
  }

  void check_length(const Envelope& envelope, std::int64_t bytes) const {
    if (envelope.bytes == bytes) return;
    throw Error(
        ErrorCode::mismatch,
        fmt::format("{}: rank {} has {} bytes for a message of which rank {} has {}",
                    describe(envelope.signature), envelope.peer, envelope.bytes, rank_, bytes),
        "pass counts that agree on both ranks")
        .at_rank(rank_)
        .with_peer(envelope.peer)
        .in_operation(describe(envelope.signature));
  }

  void deliver(const Envelope& envelope, const Post& post) {
    check_length(envelope, post.bytes);
    if (post.bytes > 0)
      std::memcpy(post.data, envelope.payload.data(), static_cast<std::size_t>(post.bytes));
    --post.completion->pending;
  }

  void write(const Envelope& ready, const void* data, std::int64_t bytes, Completion& completion) {
    check_length(ready, bytes);
    Envelope envelope;
    envelope.kind = Kind::written;
    envelope.peer = rank_;
    envelope.tag = ready.tag;
    envelope.signature = begun_.at(ready.tag.operation);
    envelope.bytes = bytes;
    LoopbackFabric::Mailbox& theirs = fabric_->mailbox(ready.peer);
    {
      const std::lock_guard lock(theirs.mutex);
      if (theirs.open) {
        std::memcpy(ready.target, data, static_cast<std::size_t>(bytes));
        theirs.envelopes.push_back(std::move(envelope));
      }
    }
    theirs.arrival.notify_one();
    --completion.pending;
  }

  std::shared_ptr<LoopbackFabric> fabric_;
  int rank_;
  LoopbackFabric::Mailbox& own_;
  EndpointStatistics statistics_;
  std::unordered_map<OperationKey, Signature, KeyHash> begun_;
  // messages of operations that have not begun here
  std::unordered_map<OperationKey, std::vector<Envelope>, KeyHash> early_;
  std::unordered_map<Match, Post, MatchHash> sends_, receives_;
  std::unordered_map<Match, Envelope, MatchHash> unexpected_, ready_;
};

}  // namespace

std::unique_ptr<Endpoint> make_loopback_endpoint(std::shared_ptr<LoopbackFabric> fabric, int rank) {
  SHOAL_CHECK(rank >= 0 && rank < fabric->size(), "loopback: rank {} of {}", rank, fabric->size());
  return std::make_unique<LoopbackEndpoint>(std::move(fabric), rank);
}

}  // namespace shoal::collectives::transport
