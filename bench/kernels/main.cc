#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <string_view>

#include "rows.h"
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::bench {

Bench::Bench(int threads)
    : threads_(threads),
      memory_(make_host_memory()),
      kernels_(kernels::make_cpu_kernels({.threads = threads, .memory = memory_.get()})),
      f32_peak_(measure_f32_peak(threads)),
      bf16_peak_(measure_bf16_peak(threads)) {
  const Bandwidth memory = measure_bandwidth(threads, 256 << 20);
  std::fprintf(stderr,
               "%s\nmemory: copy %.1f, triad %.1f, read %.1f GB/s; multiply-adds: f32 %.0f, bf16 "
               "%.0f GFLOP/s\n",
               kernels_->describe().c_str(), memory.copy, memory.triad, memory.read, f32_peak_,
               bf16_peak_);
}

View Bench::tensor(const Shape& shape, DType dtype) {
  const auto bytes = static_cast<std::size_t>(shape.count()) * size_of(dtype);
  buffers_.emplace_back(*memory_, bytes, MemoryTag::workspace);
  const View view{buffers_.back().data(), shape, dtype};
  device_backend(DeviceType::cpu).fill(view.data, 0, bytes, {});
  if (!is_floating(dtype) || dtype == DType::f64) return view;
  Buffer values(*memory_, static_cast<std::size_t>(shape.count()) * 4, MemoryTag::workspace);
  const View wide{values.data(), shape, DType::f32};
  kernels_->elementwise().fill_uniform(wide, -1, 1, {}, 0, {});
  kernels_->elementwise().cast(wide, view, {});
  return view;
}

// Bandwidth for a working set of the row's size, so that probe and kernel use the same cache.
double Bench::peak(Bound bound, const Row& row) {
  if (bound == Bound::products)
    return row.dtype == "bf16" && bf16_peak_ > 0 ? bf16_peak_ : f32_peak_;
  std::int64_t size = 1 << 20;
  while (size < row.bytes && size < (512 << 20)) size *= 2;
  if (!bandwidths_.contains(size)) bandwidths_[size] = measure_bandwidth(threads_, size / 3);
  const Bandwidth& measured = bandwidths_[size];
  return bound == Bound::read ? measured.read : std::max(measured.copy, measured.triad);
}

void Bench::write_rows(std::ostream& out) const {
  for (const Row& row : results_)
    if (row.p50_us > 0) write_row(out, row);
}

void Bench::add_row(Row row, Bound bound, std::function<void()> run) {
  row.threads = threads_;
  row.bound = bound == Bound::copy ? "copy" : bound == Bound::read ? "read" : "multiply-add";
  const std::size_t index = results_.size();
  results_.emplace_back();
  const std::string name = fmt::format("{}/{}/{}", row.operation, row.dtype, row.shape);
  benchmark::RegisterBenchmark(
      name.c_str(),
      [this, index, row, bound, run = std::move(run)](benchmark::State& state) mutable {
        const double bound_peak = peak(bound, row);
        run();  // creates cached primitives, touches memory
        std::vector<double> times;
        for (auto _ : state) {
          const auto start = Clock::now();
          run();
          const double seconds = seconds_since(start);
          state.SetIterationTime(seconds);
          times.push_back(seconds * 1e6);
        }
        row.p50_us = percentile(times, 0.5);
        row.p99_us = percentile(times, 0.99);
        const double work =
            static_cast<double>(bound == Bound::products ? row.operations : row.bytes);
        const double reached = work / row.p50_us * 1e-3;
        row.bound_fraction = bound_peak > 0 ? reached / bound_peak : 0;
        state.counters["p50_us"] = row.p50_us;
        state.counters[bound == Bound::products ? "GFLOP/s" : "GB/s"] = reached;
        state.counters["bound"] = bound_peak;
        state.counters["of_bound"] = row.bound_fraction;
        // Google Benchmark repeats a run until it is long enough; keep the last one.
        results_[index] = row;
      })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::restart_with_short_spins(argv);  // as `shoal train` does
  int threads = shoal::available_cores();
  std::ofstream file;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--rows="))
      file.open(std::string(argument.substr(7)));
    else if (argument.starts_with("--threads="))
      threads = std::max(1, std::atoi(argv[i] + 10));
    else
      argv[kept++] = argv[i];
  }
  argc = kept;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  try {
    shoal::bench::Bench bench(threads);
    shoal::bench::add_memory_bound_rows(bench);
    shoal::bench::add_product_rows(bench);
    benchmark::RunSpecifiedBenchmarks();
    if (file.is_open()) bench.write_rows(file);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shoal_bench_kernels: %s\n", error.what());
    return 1;
  }
}
