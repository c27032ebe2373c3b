// A training set read from named pipes, one per epoch, as in SageMaker's Pipe mode. The pipes
// PREFIX_0, PREFIX_1, ... each deliver the same records in sequence.
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
  std::string ending;  // suffix of the pieces' names in messages: ".jsonl"
  // The records are CSV rows, and the first is the header. Each piece starts with the header;
  // repeated headers (at the start of the next file) are dropped.
  bool has_rows = false;
  std::int64_t piece_bytes = std::int64_t{16} << 20U;  // two are in memory at a time
  double wait_seconds = deadlines::kFirstPipe;         // how long to wait for a pipe to appear
};

// Cuts each pipe into pieces that end with a record, always at the same offsets. A pipe is never
// seeked, stat-ed or opened twice; to reach a position, earlier records are read and dropped
// (pass_over).
class PipeShards final : public ShardSet {
 public:
  // Makes the samples of a piece; `name` is for messages. The thread that calls open() runs it.
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
  mutable std::int64_t next_ = 0, piece_ = 0, passed_over_ = 0;  // for open(): one caller at a time
};

}  // namespace shoal
