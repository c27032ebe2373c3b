// A training set that comes through named pipes, one an epoch, as SageMaker's Pipe mode brings it:
// PREFIX_0, PREFIX_1, ..., each with the same records, one after another.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/train/data/sample_stream.h"

namespace shoal {

struct PipeOptions {
  std::string prefix;
  std::string ending;  // of its pieces' names, for messages: ".jsonl"
  // The records are a CSV's rows: the first says what the others are. Every piece gets it, and
  // where it comes again, with the next file, it is left out.
  bool has_rows = false;
  std::int64_t piece_bytes = std::int64_t{16} << 20U;  // in memory at a time, twice
  double wait_seconds = deadlines::kFirstPipe;         // for a pipe to be there
};

// A pipe is cut into pieces that end with a record, at the same places each time. Nothing is
// sought, looked at or opened twice; a position is reached by reading on (pass_over).
class PipeShards final : public ShardSet {
 public:
  // What a piece holds; `name` for messages. Called by whoever opens.
  using Opening =
      std::function<std::shared_ptr<const Dataset>(std::string text, const std::string& name)>;
  PipeShards(PipeOptions options, Opening opening);
  ~PipeShards() override;

  std::int64_t count() const override { return 1; }
  const std::string& name(std::int64_t shard) const override;
  std::shared_ptr<const Dataset> open(std::int64_t serial) const override;
  bool is_sequential() const override { return true; }
  void pass_over(std::int64_t pieces) const override;
  void interrupt() const override;

 private:
  class Reader;
  std::string name_;
  PipeOptions options_;
  Opening opening_;
  std::unique_ptr<Reader> reader_;
  mutable std::atomic<bool> stop_{false};
  mutable std::int64_t next_ = 0, piece_ = 0, passed_over_ = 0;  // of open(): one caller at a time
};

}  // namespace shoal
