#include "fault_endpoint.h"

#include <algorithm>
#include <list>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::transport {
namespace {

constexpr std::uint32_t kMostPieces = 16;

class FaultEndpoint final : public Endpoint {
 public:
  FaultEndpoint(std::unique_ptr<Endpoint> inner, const FaultOptions& options,
                std::shared_ptr<FaultControl> control)
      : inner_(std::move(inner)),
        options_(options),
        control_(std::move(control)),
        random_(options.seed + static_cast<std::uint64_t>(inner_->rank())) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name() + " with faults"; }
  int rails() const override { return inner_->rails(); }
  std::int64_t eager_bytes() const override { return inner_->eager_bytes(); }
  void begin(OperationKey key, const Signature& signature) override {
    inner_->begin(key, signature);
  }
  void end(OperationKey key) override { inner_->end(key); }

  void post_send(int peer, MessageTag tag, const void* data, std::int64_t bytes,
                 Completion& completion) override {
    for_pieces(tag, bytes, [&](MessageTag piece, std::int64_t begin, std::int64_t length) {
      Post post = tracked(peer, piece, completion);
      post.data = static_cast<std::byte*>(const_cast<void*>(data)) + begin;
      post.bytes = length;
      if (std::bernoulli_distribution(options_.held_back)(random_)) {
        post.due = Clock::now() + std::chrono::microseconds(std::uniform_int_distribution<int>(
                                      0, options_.longest_delay_us)(random_));
        post.track->posted = false;
        held_.push_back(post);
      } else {
        send(post);
      }
    });
  }

  void post_receive(int peer, MessageTag tag, void* data, std::int64_t bytes,
                    Completion& completion) override {
    for_pieces(tag, bytes, [&](MessageTag piece, std::int64_t begin, std::int64_t length) {
      const Post post = tracked(peer, piece, completion);
      if (peer == control_->silent()) return;
      inner_->post_receive(peer, piece, static_cast<std::byte*>(data) + begin, length,
                           post.track->inner);
    });
  }

  bool progress() override {
    if (const int rank = control_->loud(); rank >= 0 && rank != inner_->rank())
      throw Error(ErrorCode::peer_lost, fmt::format("the connection to rank {} was reset", rank))
          .at_rank(inner_->rank())
          .with_peer(rank);
    bool moved = release_due();
    moved = inner_->progress() || moved;
    for (auto track = tracks_.begin(); track != tracks_.end();) {
      if (!track->inner.done() || !track->posted || is_lost(track->peer)) {
        ++track;
        continue;
      }
      --track->outer->pending;
      track = tracks_.erase(track);
      moved = true;
    }
    return moved;
  }

  bool sending() const override { return inner_->sending(); }
  void abandon() override {
    control_->note_abandoned();
    inner_->abandon();
  }
  bool must_be_polled() const override { return inner_->must_be_polled(); }
  void sleep(int microseconds) override {
    inner_->sleep(held_.empty() ? microseconds : std::min(microseconds, 50));
  }
  std::unique_ptr<MemoryRegion> register_memory(void* data, std::int64_t bytes) override {
    return inner_->register_memory(data, bytes);
  }
  EndpointStatistics statistics() const override { return inner_->statistics(); }

 private:
  struct Track {  // one piece
    Completion inner;
    Completion* outer = nullptr;
    int peer = -1;
    bool posted = true;
  };
  struct Post {
    int peer = -1;
    MessageTag tag;
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
    Track* track = nullptr;
    Clock::time_point due;
  };

  bool is_lost(int peer) const {
    const int silent = control_->silent();
    return silent >= 0 && (peer == silent || inner_->rank() == silent);
  }

  Post tracked(int peer, MessageTag tag, Completion& completion) {
    ++completion.pending;
    tracks_.push_back({{}, &completion, peer, true});
    return {peer, tag, nullptr, 0, &tracks_.back(), {}};
  }

  // Both ends derive the same pieces from their common tag.
  template <typename Visit>
  void for_pieces(MessageTag tag, std::int64_t bytes, Visit&& visit) const {
    std::uint64_t hash = options_.seed ^ tag.operation.group;
    for (const std::uint32_t word : {tag.operation.sequence, tag.ordinal})
      hash = (hash ^ word) * 0x9e3779b97f4a7c15u ^ (hash >> 31);
    const auto pieces = static_cast<std::uint32_t>((hash >> 33) % options_.most_pieces) + 1;
    for (std::uint32_t i = 0; i < pieces; ++i) {
      const std::int64_t begin = bytes * i / pieces, end = bytes * (i + 1) / pieces;
      MessageTag piece = tag;
      piece.ordinal = tag.ordinal * kMostPieces + i;
      visit(piece, begin, end - begin);
    }
  }

  void send(const Post& post) {
    post.track->posted = true;
    if (is_lost(post.peer)) return;
    inner_->post_send(post.peer, post.tag, post.data, post.bytes, post.track->inner);
  }

  bool release_due() {
    if (held_.empty()) return false;
    const auto now = Clock::now();
    const auto due =
        std::partition(held_.begin(), held_.end(), [&](const Post& p) { return p.due > now; });
    std::vector<Post> released(due, held_.end());
    held_.erase(due, held_.end());
    std::shuffle(released.begin(), released.end(), random_);
    for (const Post& post : released) send(post);
    return !released.empty();
  }

  std::list<Track> tracks_;  // stable addresses; they outlive the posts of inner_
  std::unique_ptr<Endpoint> inner_;
  FaultOptions options_;
  std::shared_ptr<FaultControl> control_;
  std::mt19937_64 random_;
  std::vector<Post> held_;
};

}  // namespace

std::unique_ptr<Endpoint> make_fault_endpoint(std::unique_ptr<Endpoint> inner,
                                              const FaultOptions& options,
                                              std::shared_ptr<FaultControl> control) {
  SHOAL_CHECK(options.most_pieces >= 1 && options.most_pieces <= kMostPieces,
              "fault endpoint: {} pieces, at most {}", options.most_pieces, kMostPieces);
  SHOAL_CHECK(options.held_back >= 0 && options.held_back <= 1, "fault endpoint: a share of {}",
              options.held_back);
  return std::make_unique<FaultEndpoint>(std::move(inner), options, std::move(control));
}

}  // namespace shoal::collectives::transport
