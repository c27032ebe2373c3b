// The rows of shoal_bench_kernels.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "harness/peaks.h"
#include "harness/row.h"

#include "shoal/kernels/kernels.h"

namespace shoal::bench {

enum class Bound { copy, read, products };

// Machine, kernels and bounds of one program run.
class Bench {
 public:
  explicit Bench(int threads);

  // Registers `run` as a benchmark. `row` holds everything except the times.
  void add_row(Row row, Bound bound, std::function<void()> run);

  // Writes the rows of the benchmarks that have run.
  void write_rows(std::ostream& out) const;

  kernels::Kernels& kernels() { return *kernels_; }
  // A tensor that lives as long as the program: zeros, or values in [-1, 1) for floating dtypes.
  View tensor(const Shape& shape, DType dtype);

 private:
  double peak(Bound bound, const Row& row);

  int threads_;
  std::unique_ptr<MemoryResource> memory_;
  std::unique_ptr<kernels::Kernels> kernels_;
  std::vector<Buffer> buffers_;
  std::vector<Row> results_;
  std::map<std::int64_t, Bandwidth> bandwidths_;  // by working set
  double f32_peak_ = 0, bf16_peak_ = 0;
};

void add_memory_bound_rows(Bench& bench);
void add_product_rows(Bench& bench);

}  // namespace shoal::bench
