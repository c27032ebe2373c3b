// A training set that is read shard by shard: larger than memory, its length not known beforehand.
//
// All ranks share one order (stream_order.h), epoch after epoch without an end; rank r of R takes
// every R-th sample, from r on. So no sample is read by two ranks, the order depends neither on
// ranks nor on workers, batches are always full, and no rank runs out before another. Where a run
// stands is the sizes of the epoch's shards so far and a position: the shuffle buffer follows.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/train/data/batch.h"
#include "shoal/train/data/dataset.h"

namespace shoal {

class ShardSet {
 public:
  virtual ~ShardSet() = default;
  virtual std::int64_t count() const = 0;
  virtual const std::string& name(std::int64_t shard) const = 0;
  // Its samples, perhaps none. Blocks while it is read; any thread. What it gives must be the same
  // each time: another number of samples than before is refused.
  virtual std::shared_ptr<const Dataset> open(std::int64_t shard) const = 0;
  // How many shards that follow are opened, side by side, while one is read: 1 where the processor
  // is what opening waits for, more where it is a network.
  virtual int worth_opening_ahead() const { return 1; }

  // A set that passes by once: open(0), open(1), ... are called in this order, and give its pieces;
  // null at the end of an epoch, and the next one is the next epoch's first. count() is 1.
  virtual bool is_sequential() const { return false; }
  // Sequential, before the first open(): what the first `pieces` hold is not wanted.
  virtual void pass_over(std::int64_t /*pieces*/) const {}
  // Sequential, from any thread: an open() that waits fails soon. For good.
  virtual void interrupt() const {}
};

struct StreamOptions {
  std::int64_t ranks = 1, rank = 0;
  std::uint64_t seed = 42;
  std::int64_t buffer = 10000;  // of the shuffle, samples; 0: everything in its order
  // Each rank has an order of its own, of every `ranks`-th shard, epoch after epoch as they end for
  // it: it opens no other shard. What is learned hangs on the ranks then.
  bool shard_by_rank = false;
};

// Where a stream is. Says nothing of ranks or workers.
struct StreamState {
  std::int64_t position = 0;     // samples of all ranks since the run began
  std::int64_t epoch = 0;        // of the next sample
  std::int64_t epoch_begin = 0;  // the position at which that epoch began
  double progress = 0;           // epochs done, their fraction included (StreamOrder::progress)
  // Sizes of that epoch's shards in its order, as far as they have been opened for it.
  std::shared_ptr<const std::vector<std::int64_t>> sizes = {};
  // With shard_by_rank: of every shard of all, -1 where this rank does not know it. Where all ranks
  // are to go on from one state, it needs what each of them knows.
  std::shared_ptr<const std::vector<std::int64_t>> known = {};
  bool ended = false;         // of a sequential set: that epoch has no more
  std::string identity = {};  // of shards, buffer and seed; empty: of any

  nlohmann::json to_json() const;
  // corrupt_data, naming the field.
  static StreamState from_json(const nlohmann::json& json);
};

// One caller at a time, but for stop(). Shards stay open while samples of theirs are in the buffer.
class SampleStream {
 public:
  SampleStream(std::shared_ptr<const ShardSet> shards, const StreamOptions& options);
  ~SampleStream();

  // invalid_argument where the state is of other shards, another buffer or seed.
  void seek(const StreamState& state);
  // From now on, threads of its own open the next shards while this one is read.
  void read_ahead();

  struct Item {
    std::shared_ptr<const Dataset> shard;
    std::int64_t index = 0, number = 0;  // of the sample in the shard, of the shard
  };
  struct Claim {
    std::vector<Item> items;
    SampleOrdinals ordinals;
    StreamState after;
  };
  // This rank's next `count` samples; nothing after stop(). Blocks while shards are opened. What
  // opening threw, with the shard's name, comes again at each later call, until seek().
  std::optional<Claim> claim(std::int64_t count);
  // Any thread: claim() returns soon, also one that waits. Until seek().
  void stop();
  // The state that seek() was given last, or the beginning.
  const StreamState& origin() const;
  bool is_sequential() const;                // then seek(), if at all, before the first claim()
  std::string name(const Item& item) const;  // "sample 3 of news.jsonl"
  std::int64_t ranks() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
