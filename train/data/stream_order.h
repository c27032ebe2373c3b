// The order of a stream's samples: shards permuted, then a shuffle buffer. Pure arithmetic.
//
// An epoch is every sample of every shard, once. Its shards come in an order drawn from (seed,
// epoch); their samples pass, one after another, through a buffer of `buffer` places, from which
// the next one is drawn: what datasets' IterableDataset.shuffle(buffer_size) does. The buffer holds
// numbers, not samples: the order hangs on the shards' sizes alone, and whoever knows those can
// find it again (a resumed run does so). Nobody need know a size before its shard's turn.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace shoal {

struct StreamPlace {
  std::int64_t shard = 0, index = 0;  // the index-th sample of the shard-th shard
  friend bool operator==(const StreamPlace&, const StreamPlace&) = default;
};

class StreamOrder {
 public:
  // `buffer` 0: shards in their order, samples in theirs; 1: only shards are shuffled. kUnknown
  // shards come in their order, until end().
  static constexpr std::int64_t kUnknown = -1;
  StreamOrder(std::int64_t shards, std::int64_t buffer, std::uint64_t seed);

  void begin(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }
  // The shard whose size must be given before the epoch can go on; nothing: none must.
  std::optional<std::int64_t> wanted() const;
  void give(std::int64_t samples);  // of wanted(); 0 is possible
  void end();                       // of unknown shards: there is no wanted() in this epoch
  bool ended() const { return ended_; }
  // Needs nothing wanted. Whether every sample has been drawn.
  bool done() const { return buffer_.empty(); }
  StreamPlace next();  // not done()

  std::int64_t drawn() const { return drawn_; }
  // Sizes given in this epoch, in its order.
  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  // The next `count` shards that will be wanted, after wanted() where there is one; the next
  // epoch's after the last. One may be there twice. Of unknown shards: none.
  std::vector<std::int64_t> upcoming(int count) const;
  // Share of the epoch that is drawn, 0 to 1. Shards to come count like those that are known; where
  // nobody knows how many come, 0.
  double progress() const;

 private:
  void fill();

  std::int64_t shards_, places_;
  bool shuffles_, ended_ = false;
  std::uint64_t seed_;
  std::int64_t epoch_ = 0, drawn_ = 0;
  std::vector<std::int64_t> order_, sizes_;
  std::int64_t next_index_ = 0;  // of the last shard given, to enter the buffer next
  std::int64_t entered_ = 0;
  std::vector<StreamPlace> buffer_;
};

}  // namespace shoal
