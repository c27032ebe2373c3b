// The rate at which a run's devices could compute, for the share of it that the run reaches (MFU).
#pragma once

#include <string>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/tensor/dtype.h"
#include "shoal/train/run/compute.h"

namespace shoal::command {

struct Peak {
  double flops = 0;    // FLOP/s of all ranks together; 0: unknown
  std::string source;  // "stated for an H200"
};

// The device of this rank, and the options that say what is known of it.
struct PeakRequest {
  Compute& compute;
  Device device;
  std::string description;  // of a GPU, with its name
  std::string machine;      // option `machine`; empty: none
  DType dtype;              // in which the run computes
};

// The rate that `machine` or the maker of the GPU states. On a CPU without `machine`, the fastest
// of a few matrix products, which take some 50 ms. Collective: every rank must call it.
Peak peak_of(const PeakRequest& request, collectives::Communicator& ranks);

}  // namespace shoal::command
