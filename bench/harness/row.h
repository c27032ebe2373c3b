// A benchmark's result as one JSON line (house rule 8), so that rows of many runs can be joined.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace shoal::bench {

struct Row {
  std::string operation;        // "layer_norm"
  std::string dtype;            // "bf16"
  std::string shape;            // "[2048, 768]"
  std::int64_t bytes = 0;       // moved to or from memory, once each
  std::int64_t operations = 0;  // floating-point operations; 0: not what bounds it
  int threads = 1;
  double p50_us = 0, p99_us = 0;
  std::string bound;          // "copy", "read", "bf16" ...: which peak
  double bound_fraction = 0;  // of that peak, measured in the same call
};

// The machine's processor and the commit of this build are added.
void write_row(std::ostream& out, const Row& row);

// For rows of other columns.
std::string machine();  // the processor's name
std::string commit();   // of this build

// The p-th (0..1) smallest of `values`, nearest rank; 0 when there are none.
double percentile(std::vector<double> values, double p);

}  // namespace shoal::bench
