// Channels in Pipe mode: input/data/NAME_0, NAME_1, ..., named pipes that are each read once.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

namespace shoal::sagemaker {

// A channel and how this host prepares it before ranks read it.
struct PipedChannel {
  std::string prefix;   // ".../input/data/train": the pipes PREFIX_0, PREFIX_1 ...
  std::string file;     // the first pipe is copied to this file; empty: fan_out is used
  std::string fan_out;  // FAN_OUT/R/NAME_E: separate pipes for each rank R of the host
  int ranks = 0;        // number of these ranks
};

// Copies the first pipe to the file, which appears atomically. Blocks. Throws io, or aborted once
// `stop` is non-zero.
void copy_to_file(const PipedChannel& channel, const std::atomic<int>& stop);

// A thread that copies every byte of each pipe to all ranks, at the pace of the slowest, until
// destruction. Ranks do not notice failures: the end of a pipe would look like the end of an epoch,
// so they wait. The process that started the ranks must end them.
class PipeFanOut {
 public:
  // `stop` is the number of the signal that ends the job, 0 until it arrives. It must outlive this
  // object.
  PipeFanOut(const PipedChannel& channel, const std::atomic<int>& stop);
  ~PipeFanOut();
  // A failure that happened before the signal; nullopt: none. Thread-safe.
  std::optional<std::string> failure() const;
  PipeFanOut(const PipeFanOut&) = delete;
  PipeFanOut& operator=(const PipeFanOut&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::sagemaker
