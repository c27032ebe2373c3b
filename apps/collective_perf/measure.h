// One size of one operation, timed and checked on all ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "options.h"

#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::perf {

// Seconds of one call. mean: over the calls and the ranks; minimum, p50, p99: of the calls of the
// slowest rank (percentiles need a clock around each call, which the mean, measured apart, has
// not).
struct Timing {
  double mean = 0, minimum = 0, p50 = 0, p99 = 0;
  std::int64_t iterations = 0;
  std::int64_t wrong = 0;  // elements, over all ranks; -1: not checked
  std::string algorithm;   // that ran, as the selection table names it
};

struct Result {
  std::int64_t bytes = 0;  // the larger buffer's, as in nccl-tests
  std::int64_t count = 0;  // as passed to the call
  std::optional<Timing> out_of_place, in_place;
};

// Bytes per second a call moves: bytes / time, and the same times the factor that makes it
// comparable with a link's rate whatever the number of ranks (nccl-tests, PERFORMANCE.md).
double bus_factor(collectives::Operation operation, int ranks);

// Bytes that must leave the busiest host, or reach it, for each byte of the size: with so many
// hosts, whatever the ranks inside (docs/algorithms.md). 0: no such bound is known here.
double host_factor(collectives::Operation operation, int nodes);

// Memory of the Communicator's device, and on a GPU a copy of it on the host: inputs are made and
// results are counted there.
class Mirrored {
 public:
  Mirrored() = default;
  Mirrored(MemoryResource& memory, MemoryResource& host, std::size_t bytes, Stream stream);
  std::byte* data() const { return static_cast<std::byte*>(memory_.data()); }  // what calls get
  std::byte* host() const { return mirror_ ? static_cast<std::byte*>(mirror_.data()) : data(); }
  void upload() const;    // host() to data(); both block, and cost nothing on the host
  void download() const;  // data() to host()
  void zero() const;

 private:
  Stream stream_;
  Buffer memory_, mirror_;
};

// Has the buffers of the largest size.
class Bench {
 public:
  Bench(const Options& options, collectives::Communicator& communicator);
  Result run(std::int64_t bytes);  // collective

 private:
  struct Call {
    const std::byte* send;
    std::byte* recv;
    std::int64_t count;
    bool in_place;
  };
  Call prepare(std::int64_t count, bool in_place) const;  // fresh inputs
  collectives::WorkPtr start(const Call& call) const;
  std::int64_t wrong(const Call& call) const;  // on this rank
  Timing time(std::int64_t count, bool in_place) const;
  double agree(double value, collectives::ReduceOp op) const;
  std::int64_t iterations(double seconds) const;

  Options options_;
  collectives::Communicator& communicator_;
  Stream stream_;                                  // the Communicator's device, its default stream
  std::unique_ptr<MemoryResource> host_, device_;  // device_: the GPU's, for user memory there
  Mirrored a_, b_, word_;
};

}  // namespace shoal::perf
