// A benchmark result as one JSON line (house rule 8), so that rows of many runs can be joined.
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
  std::int64_t operations = 0;  // floating-point operations; 0: they are not the bound
  int threads = 1;
  double p50_us = 0, p99_us = 0;
  std::string bound;          // "copy", "read", "bf16" ...: the peak
  double bound_fraction = 0;  // share of that peak, measured in the same call
};

// Adds the machine's processor and the commit of this build.
void write_row(std::ostream& out, const Row& row);

// For rows with other columns.
std::string machine();  // the processor's name
std::string commit();   // of this build

// The p-th (0..1) smallest of `values` by nearest rank; 0 if `values` is empty.
double percentile(std::vector<double> values, double p);

}  // namespace shoal::bench
