// Adafactor on CPUs (kernels/optimizer.h): which thread computes which rows. No sum depends on the
// number of threads.
#pragma once

#include "shoal/kernels/cpu/scratch.h"
#include "shoal/kernels/optimizer.h"

namespace shoal::kernels {

class CpuAdafactor {
 public:
  CpuAdafactor(int threads, MemoryResource& memory) : threads_(threads), scratch_(memory) {}

  // The three calls, with checked arguments.
  void sums(const AdafactorArgs& args);
  void moments(const AdafactorArgs& args);
  void apply(const AdafactorArgs& args);

 private:
  struct Tensor;
  template <class Use>
  void for_each(const AdafactorArgs& args, const Use& use);
  void sum_rows_and_columns(const Tensor& x);
  void advance(const Tensor& x, double kept);

  int threads_;
  Scratch scratch_;
};

}  // namespace shoal::kernels
