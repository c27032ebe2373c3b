// Times and checks one size of one operation on all ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "options.h"

#include "shoal/collectives/call.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::perf {

// Seconds per call. mean: over calls, and over ranks as -a says. cpu: the part of it in which this
// rank starts calls. calls: each call's time at its slowest rank, measured separately, since a
// clock around each call slows short ones; empty without --stats.
struct Timing {
  double mean = 0, cpu = 0;
  std::vector<double> calls;
  std::int64_t iterations = 0;
  std::int64_t wrong = 0;  // wrong elements over all ranks; -1: not checked
  std::string algorithm;   // the algorithm used, as in the selection table
  std::string why;         // the rule or option that chose it
};

// Of Timing::calls without the leading `skip`; seconds. As nccl-tests computes them.
struct Spread {
  double minimum = 0, maximum = 0, mean = 0, p50 = 0, p95 = 0, p99 = 0, deviation = 0;
};
Spread spread_of(const std::vector<double>& calls, std::int64_t skip);

struct Result {
  Case what;
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
  void begin_at(std::size_t bytes) { begin_ = bytes; }  // offset of data() and host()
  // passed to the collective
  std::byte* data() const { return static_cast<std::byte*>(memory_.data()) + begin_; }
  std::byte* host() const {
    return mirror_ ? static_cast<std::byte*>(mirror_.data()) + begin_ : data();
  }
  void upload() const;    // copies host() to data(); both copies block, and do nothing on the host
  void download() const;  // copies data() to host()
  void zero() const;

 private:
  Stream stream_;
  Buffer memory_, mirror_;
  std::size_t begin_ = 0;
};

// Owns buffers for the largest size.
class Bench {
 public:
  // `largest`: bytes of the larger buffer.
  Bench(const Options& options, std::int64_t largest, collectives::Communicator& communicator);
  Result run(const Case& what, std::int64_t bytes);  // collective over all ranks

 private:
  struct Call {
    const std::byte* send;
    std::byte* recv;
    std::int64_t count;
    bool in_place;
    std::int64_t seed;
  };
  Call prepare(std::int64_t count, bool in_place, std::int64_t seed) const;  // writes fresh inputs
  collectives::WorkPtr start(const Call& call) const;
  // `together` calls in groups of as many as fit the buffers side by side.
  std::vector<collectives::WorkPtr> start_iteration(const Call& call) const;
  struct Seconds {
    double total = 0, starting = 0;
  };
  Seconds repeat(const Call& call, std::int64_t iterations) const;
  std::int64_t wrong(const Call& call) const;  // wrong elements on this rank
  std::int64_t check(Call& call) const;        // calls; returns wrong elements on all ranks
  Timing time(std::int64_t count, bool in_place) const;
  std::vector<double> time_each(const Call& call, std::int64_t iterations) const;
  void agree(std::vector<double>& values, collectives::ReduceOp op) const;
  double average(double seconds) const;
  std::int64_t iterations(double seconds) const;
  std::int64_t whole_bytes(std::int64_t count) const;  // of the larger buffer

  Options options_;
  std::int64_t largest_;
  Case case_;
  collectives::Communicator& communicator_;
  Stream stream_;                                  // default stream of the Communicator's device
  std::unique_ptr<MemoryResource> host_, device_;  // device_: user memory on the GPU
  Mirrored a_, b_, words_;
  std::vector<std::unique_ptr<collectives::Registration>> registrations_;
};

}  // namespace shoal::perf
