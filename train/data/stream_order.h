// The order of a stream's samples: permuted shards, then a shuffle buffer. Pure arithmetic.
//
// An epoch contains every sample of every shard once. (seed, epoch) determine the order of the
// shards. Their samples pass in sequence through a buffer of `buffer` entries, from which the next
// sample is drawn, as in datasets' IterableDataset.shuffle(buffer_size). The buffer holds indices,
// not samples. The order thus depends only on the shards' sizes, and a resumed run can replay it. A
// shard's size is needed only at its turn.
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
  // `buffer` 0: no shuffling; 1: only shards are shuffled. With kUnknown, shards come in sequence
  // until end().
  static constexpr std::int64_t kUnknown = -1;
  StreamOrder(std::int64_t shards, std::int64_t buffer, std::uint64_t seed);

  void begin(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }
  // The shard whose size must be given before the epoch can continue; nullopt: none.
  std::optional<std::int64_t> wanted() const;
  void give(std::int64_t samples);  // size of wanted(); may be 0
  void end();                       // with kUnknown: this epoch has no further shards
  bool ended() const { return ended_; }
  // Whether every sample has been drawn. Requires that wanted() is empty.
  bool done() const { return buffer_.empty(); }
  StreamPlace next();  // requires !done()

  std::int64_t drawn() const { return drawn_; }
  // Sizes given in this epoch, in the epoch's order.
  const std::vector<std::int64_t>& sizes() const { return sizes_; }
  // The `count` shards that follow wanted(), continuing into the next epochs; a shard may occur
  // twice. Empty with kUnknown.
  std::vector<std::int64_t> upcoming(int count) const;
  // Share of the epoch that has been drawn, 0 to 1; shards whose size is unknown count as much as
  // the others. 0 while the number of shards is unknown.
  double progress() const;

 private:
  void fill();

  std::int64_t shards_, places_;
  bool shuffles_, ended_ = false;
  std::uint64_t seed_;
  std::int64_t epoch_ = 0, drawn_ = 0;
  std::vector<std::int64_t> order_, sizes_;
  std::int64_t next_index_ = 0;  // next sample of the last given shard to enter the buffer
  std::int64_t entered_ = 0;
  std::vector<StreamPlace> buffer_;
};

}  // namespace shoal
