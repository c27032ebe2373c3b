// Times and checks one size of one operation on all ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "options.h"

#include "shoal/collectives/call.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::perf {

// Seconds per call. mean: over calls and ranks; minimum, p50, p99: over the calls of the slowest
// rank. Percentiles need a clock around each call; the mean is measured separately, without it.
struct Timing {
  double mean = 0, minimum = 0, p50 = 0, p99 = 0;
  std::int64_t iterations = 0;
  std::int64_t wrong = 0;  // wrong elements over all ranks; -1: not checked
  std::string algorithm;   // the algorithm used, as in the selection table
  std::string why;         // the rule or option that chose it
};

struct Result {
  std::int64_t bytes = 0;  // size of the larger buffer, as in nccl-tests
  std::int64_t count = 0;  // as passed to the call
  std::optional<Timing> out_of_place, in_place;
};

// Factor from bytes / time to bus bandwidth, which is comparable with a link's rate for any number
// of ranks (nccl-tests, PERFORMANCE.md).
double bus_factor(collectives::Operation operation, int ranks);

// Bytes per byte of size that the busiest host must send or receive, for this number of hosts
// (docs/internals/algorithms.md). 0: no bound known.
double host_factor(collectives::Operation operation, int nodes);

// Memory on the Communicator's device, with a host copy if that is a GPU. Inputs are generated and
// results are checked on the host.
class Mirrored {
 public:
  Mirrored() = default;
  Mirrored(MemoryResource& memory, MemoryResource& host, std::size_t bytes, Stream stream);
  // passed to the collective
  std::byte* data() const { return static_cast<std::byte*>(memory_.data()); }
  std::byte* host() const { return mirror_ ? static_cast<std::byte*>(mirror_.data()) : data(); }
  void upload() const;    // copies host() to data(); both copies block, and do nothing on the host
  void download() const;  // copies data() to host()
  void zero() const;

 private:
  Stream stream_;
  Buffer memory_, mirror_;
};

// Owns buffers for the largest size.
class Bench {
 public:
  Bench(const Options& options, collectives::Communicator& communicator);
  Result run(std::int64_t bytes);  // collective over all ranks

 private:
  struct Call {
    const std::byte* send;
    std::byte* recv;
    std::int64_t count;
    bool in_place;
  };
  Call prepare(std::int64_t count, bool in_place) const;  // writes fresh inputs
  collectives::WorkPtr start(const Call& call) const;
  std::int64_t wrong(const Call& call) const;  // wrong elements on this rank
  Timing time(std::int64_t count, bool in_place) const;
  double agree(double value, collectives::ReduceOp op) const;
  std::int64_t iterations(double seconds) const;

  Options options_;
  collectives::Communicator& communicator_;
  Stream stream_;                                  // default stream of the Communicator's device
  std::unique_ptr<MemoryResource> host_, device_;  // device_: user memory on the GPU
  Mirrored a_, b_, word_;
};

}  // namespace shoal::perf
