// Measures the gain from data loader workers, and how long a trainer waits for batches (README.md).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "harness/row.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/train/data/loader.h"

namespace shoal::bench {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kBatch = 4;

struct Arguments {
  std::vector<int> workers = {0, 1, 2, 4, 8, 12, 16};
  double block_ms = 4, compute_ms = 2;  // per sample
  std::int64_t batches = 192;
  int rounds = 3;
  bool json = false;
};

void sleep_ms(double ms) {
  std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(ms));
}

// Arithmetic that the compiler cannot remove.
std::uint64_t churn(std::int64_t rounds, std::uint64_t x) {
  for (std::int64_t i = 0; i < rounds; ++i) x = x * 6364136223846793005ULL + (x >> 29U);
  return x;
}

double thread_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Rounds of churn() that take one millisecond of CPU time.
std::int64_t rounds_of_ms() {
  double best = 1e9;
  constexpr std::int64_t kRounds = 4'000'000;
  for (int i = 0; i < 5; ++i) {
    const double begin = thread_cpu_seconds();
    if (churn(kRounds, static_cast<std::uint64_t>(i) + 1) == 42) std::puts("");
    best = std::min(best, thread_cpu_seconds() - begin);
  }
  return static_cast<std::int64_t>(1e-3 * static_cast<double>(kRounds) / best);
}

class Transformed final : public Dataset {
 public:
  Transformed(std::int64_t size, std::function<std::uint64_t(std::int64_t)> transform)
      : size_(size), transform_(std::move(transform)) {}
  std::int64_t size() const override { return size_; }
  Sample get(std::int64_t index) const override {
    return {.input_ids = {static_cast<std::int32_t>(transform_(index) & 0xFFFFU)}};
  }

 private:
  std::int64_t size_;
  std::function<std::uint64_t(std::int64_t)> transform_;
};

struct Measured {
  double seconds = 0, stall_seconds = 0;
};

// One epoch with a trainer that sleeps `step_ms` per batch, like one whose accelerator computes.
Measured epoch(const std::shared_ptr<const Dataset>& dataset, int workers, double step_ms) {
  const auto memory = make_host_memory();
  const auto begin = Clock::now();
  Loader loader(dataset, std::make_shared<PaddingCollator>(),
                std::make_unique<EvaluationSampler>(dataset->size(), 1, 0), *memory,
                {.batch_size = kBatch, .num_workers = workers});
  while (loader.next())
    if (step_ms > 0) sleep_ms(step_ms);
  return {seconds_since(begin), loader.statistics().stall_seconds};
}

// The same samples by bare threads: the rate that the machine allows at its current load.
double bare(const Dataset& dataset, int threads) {
  const auto begin = Clock::now();
  std::atomic<std::int64_t> next{0};
  std::vector<std::thread> all;
  for (int i = 0; i < std::max(1, threads); ++i)
    all.emplace_back([&] {
      for (std::int64_t at = next++; at < dataset.size(); at = next++) dataset.get(at);
    });
  for (std::thread& thread : all) thread.join();
  return seconds_since(begin);
}

struct Case {
  std::string name;
  std::shared_ptr<const Dataset> dataset;
  double step_ms = 0;
  std::vector<int> workers;
};

struct Cell {
  std::vector<double> seconds, stalls, bare_seconds;
};

void print(const Case& what, const std::vector<Cell>& cells, bool json) {
  const auto samples = static_cast<double>(what.dataset->size());
  const double alone = percentile(cells[0].seconds, 0.5);
  if (!json)
    fmt::print("{}\n{:>8} {:>10} {:>9} {:>11} {:>12} {:>12}\n", what.name, "workers", "samples/s",
               "speed-up", "per worker", "bare threads", "stall share");
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const double seconds = percentile(cells[i].seconds, 0.5);
    const int workers = what.workers[i];
    const double speed_up = alone / seconds;
    const double beside = percentile(cells[i].bare_seconds, 0.5) / seconds;
    const double stalled = percentile(cells[i].stalls, 0.5) / seconds;
    if (json) {
      ordered_json row = {{"operation", "loader " + what.name},
                          {"workers", workers},
                          {"samples_per_second", samples / seconds},
                          {"speed_up", speed_up},
                          {"speed_up_per_worker", speed_up / std::max(1, workers)},
                          {"of_bare_threads", beside},
                          {"stall_share", stalled},
                          {"machine", machine()},
                          {"commit", commit()}};
      std::cout << row.dump() << '\n';
    } else {
      fmt::print("{:>8} {:>10.1f} {:>9.2f} {:>11.2f} {:>12.2f} {:>12.2f}\n", workers,
                 samples / seconds, speed_up, speed_up / std::max(1, workers), beside, stalled);
    }
  }
}

void measure(const Case& what, const Arguments& a) {
  std::vector<Cell> cells(what.workers.size());
  for (int round = 0; round < a.rounds; ++round)
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const Measured measured = epoch(what.dataset, what.workers[i], what.step_ms);
      cells[i].seconds.push_back(measured.seconds);
      cells[i].stalls.push_back(measured.stall_seconds);
      cells[i].bare_seconds.push_back(bare(*what.dataset, what.workers[i]));
    }
  print(what, cells, a.json);
}

void run(const Arguments& a) {
  const std::int64_t samples = a.batches * kBatch;
  const auto blocking = std::make_shared<Transformed>(samples, [ms = a.block_ms](std::int64_t) {
    sleep_ms(ms);
    return std::uint64_t{1};
  });
  const std::int64_t rounds = std::llround(a.compute_ms * static_cast<double>(rounds_of_ms()));
  const auto computing = std::make_shared<Transformed>(samples, [rounds](std::int64_t index) {
    return churn(rounds, static_cast<std::uint64_t>(index) + 1);
  });
  measure({fmt::format("blocks {} ms a sample", a.block_ms), blocking, 0, a.workers}, a);
  const int cores = available_cores();
  std::vector<int> few;
  for (const int workers : a.workers)
    if (workers <= 2 * cores) few.push_back(workers);
  measure(
      {fmt::format("computes {} ms a sample, {} cores", a.compute_ms, cores), computing, 0, few},
      a);
  const double step = kBatch * a.block_ms / 4;
  measure({fmt::format("blocks {} ms a sample, steps of {} ms", a.block_ms, step),
           blocking,
           step,
           {0, 1, 2, 4, 8}},
          a);
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  CLI::App app{"Throughput of the data loader by workers, beside none and beside bare threads."};
  shoal::bench::Arguments a;
  app.add_option("--workers", a.workers, "of the loader; the first is what others are compared to")
      ->delimiter(',')
      ->check(CLI::Range(0, 1024));
  app.add_option("--block-ms", a.block_ms, "sleep of a sample")->check(CLI::PositiveNumber);
  app.add_option("--compute-ms", a.compute_ms, "a core's time of a sample")
      ->check(CLI::PositiveNumber);
  app.add_option("--batches", a.batches, "of 4 samples")->check(CLI::Range(1, 1'000'000));
  app.add_option("--rounds", a.rounds, "medians of so many, turn by turn")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", a.json, "a line a row");
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::bench::run(a);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "shoal_bench_loader: %s\n", problem.what());
    return 1;
  }
  return 0;
}
