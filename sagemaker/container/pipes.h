// Channels in Pipe mode: input/data/NAME_0, NAME_1, ..., each a named pipe that is read once.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

namespace shoal::sagemaker {

// A channel, and what becomes of it on this host before ranks read it.
struct PipedChannel {
  std::string prefix;   // ".../input/data/train": the pipes PREFIX_0, PREFIX_1 ...
  std::string file;     // its first pipe is copied here; or, where it is empty,
  std::string fan_out;  // FAN_OUT/R/NAME_E: pipes of its own for each rank R of the host, and
  int ranks = 0;        // their number
};

// Copies the first pipe to its file, which appears whole. Blocks. io; aborted once `stop` is not 0.
void copy_to_file(const PipedChannel& channel, const std::atomic<int>& stop);

// Gives every byte of each pipe to all ranks, on a thread of its own, at the pace of the slowest,
// for as long as it lives. What goes wrong, ranks do not find out: to them an end of their pipes
// would be the end of an epoch, so they wait, and whoever started them has to end them.
class PipeFanOut {
 public:
  // `stop`, which outlives this: the signal that asks for the job's end, 0 until then.
  PipeFanOut(const PipedChannel& channel, const std::atomic<int>& stop);
  ~PipeFanOut();
  // What went wrong before the signal, whose cause it is not then; nothing: all was well. From any
  // thread.
  std::optional<std::string> failure() const;
  PipeFanOut(const PipeFanOut&) = delete;
  PipeFanOut& operator=(const PipeFanOut&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::sagemaker
