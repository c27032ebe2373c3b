// Measured peaks of this machine, as bounds for kernels.
#pragma once

#include <cstdint>

namespace shoal::bench {

// Memory bandwidth with `threads` threads over arrays of `bytes` each. Use far more bytes than the
// last-level cache, or the kernel's working set for a bound inside the caches. Counts each byte
// that a program reads or writes once, as STREAM does, without the lines that a write reads first.
// Best of several runs, GB/s.
struct Bandwidth {
  double copy = 0;   // a = b
  double triad = 0;  // a = b + s * c
  double read = 0;   // sum of a
};
Bandwidth measure_bandwidth(int threads, std::int64_t bytes);

// Independent f32 multiply-adds in the machine's widest vectors, GFLOP/s over all threads.
double measure_f32_peak(int threads);
// bf16 pairs with f32 sums (vdpbf16ps), GFLOP/s; 0 if the machine lacks the instruction.
double measure_bf16_peak(int threads);

}  // namespace shoal::bench
