// A training set that is read shard by shard: larger than memory, of unknown length.
//
// All ranks share one endless order of epochs (stream_order.h); rank r of R takes every R-th
// sample, from r on. Hence no two ranks read the same sample, and the order does not depend on
// ranks or workers. Batches are always full, and no rank runs out before another. A checkpoint
// stores the sizes of the epoch's shards so far and a position; the shuffle buffer is reconstructed
// from them.
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
  // Samples of a shard, possibly none. Blocks while reading; thread-safe. Must return the same
  // samples each time; the stream rejects a changed number of samples.
  virtual std::shared_ptr<const Dataset> open(std::int64_t shard) const = 0;
  // How many of the following shards to open concurrently while one is read: 1 if opening is bound
  // by the processor, more if it is bound by the network.
  virtual int worth_opening_ahead() const { return 1; }

  // A sequential set can be read only once. open(0), open(1), ... are called in this order and
  // return its pieces. A null result ends an epoch; the next call starts the next one. count() is
  // 1.
  virtual bool is_sequential() const { return false; }
  // Sequential sets; called before the first open(). The samples of the first `pieces` pieces will
  // not be needed.
  virtual void pass_over(std::int64_t /*pieces*/) const {}
  // Sequential sets; called on any thread. A waiting open() fails soon, as does every later one.
  virtual void interrupt() const {}
};

struct StreamOptions {
  std::int64_t ranks = 1, rank = 0;
  std::uint64_t seed = 42;
  std::int64_t buffer = 10000;  // size of the shuffle buffer in samples; 0: no shuffling
  // Each rank has its own order over every `ranks`-th shard and its own epochs, and opens no other
  // shard. Training results then depend on the number of ranks.
  bool shard_by_rank = false;
};

// Position of a stream, independent of workers and (without shard_by_rank) of ranks.
struct StreamState {
  std::int64_t position = 0;     // samples consumed by all ranks since the run began
  std::int64_t epoch = 0;        // epoch of the next sample
  std::int64_t epoch_begin = 0;  // position at which that epoch began
  double progress = 0;           // epochs done, as a fraction (StreamOrder::progress)
  std::shared_ptr<const std::vector<std::int64_t>> sizes = {};
  // With shard_by_rank: size of every shard of the set, -1 if this rank does not know it. To resume
  // all ranks from one state, merge the sizes that each of them knows.
  std::shared_ptr<const std::vector<std::int64_t>> known = {};
  bool ended = false;         // sequential set: that epoch has no more pieces
  std::string identity = {};  // hash of shards, buffer and seed; empty: matches any

  nlohmann::json to_json() const;
  // corrupt_data, naming the field.
  static StreamState from_json(const nlohmann::json& json);
};

// One caller at a time, except for stop(). Shards stay open while the buffer refers to their
// samples.
class SampleStream {
 public:
  SampleStream(std::shared_ptr<const ShardSet> shards, const StreamOptions& options);
  ~SampleStream();

  // invalid_argument if the state belongs to other shards, another buffer size or another seed.
  void seek(const StreamState& state);
  // Starts background threads that open the next shards while this one is read.
  void read_ahead();

  struct Item {
    std::shared_ptr<const Dataset> shard;
    std::int64_t index = 0, number = 0;  // the sample in its shard; the shard in its set
  };
  struct Claim {
    std::vector<Item> items;
    SampleOrdinals ordinals;
    StreamState after;
  };
  // This rank's next `count` samples; nullopt after stop(). Blocks while shards are opened. If
  // opening a shard failed, every call rethrows that error, with the shard's name, until seek().
  std::optional<Claim> claim(std::int64_t count);
  // Thread-safe. Makes claim() return soon, even if it is waiting, until the next seek().
  void stop();
  // The state last passed to seek(), or the beginning.
  const StreamState& origin() const;
  bool is_sequential() const;                // if true, call seek() only before the first claim()
  std::string name(const Item& item) const;  // "sample 3 of news.jsonl"
  std::int64_t ranks() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
