// What this machine can do, measured: the bounds that kernels are held against.
#pragma once

#include <cstdint>

namespace shoal::bench {

// Memory bandwidth with `threads` threads over arrays of `bytes` each (choose far more than the
// last cache, or as few as the kernel's own working set to bound it inside the caches), counting
// each byte that a program reads or writes once (as STREAM does; the lines that a write reads
// first are not counted). Best of several runs, GB/s.
struct Bandwidth {
  double copy = 0;   // a = b
  double triad = 0;  // a = b + s * c
  double read = 0;   // sum of a
};
Bandwidth measure_bandwidth(int threads, std::int64_t bytes);

// Independent f32 multiply-adds in the widest vectors of this machine, GFLOP/s over all threads.
double measure_f32_peak(int threads);
// bf16 pairs with f32 sums (vdpbf16ps), GFLOP/s; 0 where the machine has no such instruction.
double measure_bf16_peak(int threads);

}  // namespace shoal::bench
