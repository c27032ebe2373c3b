// Compares native and MPI all_reduce by turns under mpirun. Prints one JSON line per size.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <vector>

#include "harness/row.h"
#include <CLI/CLI.hpp>
#include <mpi.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::collectives {
namespace {

struct Arguments {
  std::int64_t min_bytes = 8;
  std::int64_t max_bytes = 256 << 20;
  int rounds = 9;
  bool overlap = true;
};

struct Contestant {
  std::string name;
  std::function<void(std::int64_t count)> all_reduce;
  float* data = nullptr;
  bool reduces = true;            // false: a bound without a result
  std::vector<double> seconds{};  // of one call, by round
};

int repetitions(std::int64_t bytes) {
  return static_cast<int>(std::clamp<std::int64_t>((32 << 20) / bytes, 3, 2000));
}

double time_once(Communicator& communicator, const Contestant& contestant, std::int64_t count) {
  communicator.barrier()->wait();
  const int times = repetitions(count * 4);
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) contestant.all_reduce(count);
  return seconds_since(start) / times;
}

bool verify(const Contestant& contestant, std::int64_t count, int rank, int size) {
  if (!contestant.reduces) return true;
  for (std::int64_t i = 0; i < count; ++i) contestant.data[i] = static_cast<float>(rank + i % 7);
  contestant.all_reduce(count);
  const std::int64_t of_ranks = size * (size - 1) / 2;  // 0 + 1 + ... + size - 1
  bool right = true;
  for (std::int64_t i = 0; i < count; ++i)
    right = right && contestant.data[i] == static_cast<float>(of_ranks + size * (i % 7));
  std::fill_n(contestant.data, count, 0.0f);  // so that repeated sums stay finite
  return right;
}

void compare(Communicator& communicator, std::vector<Contestant>& contestants,
             const Arguments& arguments) {
  const double factor = 2.0 * (communicator.size() - 1) / communicator.size();
  for (std::int64_t bytes = 8; bytes <= arguments.max_bytes; bytes *= bytes < 1024 ? 8 : 4) {
    if (bytes < arguments.min_bytes) continue;
    const std::int64_t count = bytes / 4;
    bool right = true;
    for (Contestant& c : contestants) {
      c.seconds.clear();
      right = verify(c, count, communicator.rank(), communicator.size()) && right;
      time_once(communicator, c, count);
    }
    for (int round = 0; round < arguments.rounds; ++round)
      for (Contestant& c : contestants) c.seconds.push_back(time_once(communicator, c, count));
    if (communicator.rank() != 0) continue;
    nlohmann::ordered_json row{{"operation", "all_reduce"},
                               {"bytes", bytes},
                               {"ranks", communicator.size()},
                               {"dtype", "f32"},
                               {"verified", right}};
    for (const Contestant& c : contestants) {
      const double median = bench::percentile(c.seconds, 0.5);
      row[c.name + "_us"] = std::round(median * 1e8) / 100;
      row[c.name + "_busbw_GBps"] =
          std::round(static_cast<double>(bytes) * factor / median / 1e7) / 100;
    }
    std::cout << row.dump() << std::endl;
  }
}

// Stands in for backward: arithmetic that stays in registers. `x` keeps the compiler from merging
// calls.
[[gnu::noinline]] double compute(double x, std::int64_t rounds) {
  for (std::int64_t i = 0; i < rounds; ++i) x = x * 0.999999 + 1e-6;
  return x;
}

// Compares launching each of eight buckets after an eighth of the computation with launching all
// after it.
void overlap(Communicator& communicator, Contestant& contestant, int rounds,
             volatile double& sink) {
  constexpr std::int64_t kCount = (8 << 20) / 4;
  constexpr int kBuckets = 8;
  const auto start = Clock::now();
  sink = compute(sink, 10'000'000);
  const auto slice = static_cast<std::int64_t>(1e7 * 0.015 / seconds_since(start));
  std::vector<double> alone, after, during;
  const auto launch = [&](int bucket) {
    float* data = contestant.data + bucket * kCount;
    return communicator.all_reduce(data, data, kCount, DType::f32, ReduceOp::sum);
  };
  for (int round = 0; round < rounds; ++round) {
    for (std::vector<double>* times : {&alone, &after, &during}) {
      communicator.barrier()->wait();
      std::vector<std::unique_ptr<Work>> works;
      const auto begin = Clock::now();
      for (int bucket = 0; bucket < kBuckets; ++bucket) {
        sink = compute(sink, slice);
        if (times == &during) works.push_back(launch(bucket));
      }
      for (int bucket = 0; times == &after && bucket < kBuckets; ++bucket)
        works.push_back(launch(bucket));
      for (const auto& work : works) work->wait();
      times->push_back(seconds_since(begin));
    }
  }
  if (communicator.rank() != 0) return;
  const auto ms = [](const std::vector<double>& times) {
    return std::round(bench::percentile(times, 0.5) * 1e5) / 100;
  };
  std::cout << nlohmann::ordered_json{{"operation", "overlap"},
                                      {"backend", communicator.backend()},
                                      {"ranks", communicator.size()},
                                      {"bytes", kBuckets * kCount * 4},
                                      {"compute_ms", ms(alone)},
                                      {"reduce_after_ms", ms(after)},
                                      {"reduce_during_ms", ms(during)},
                                      {"by_progress_thread",
                                       communicator.statistics().by_progress_thread}}
                   .dump()
            << std::endl;
}

void run(const Arguments& arguments) {
  const World world = discover_world();
  const auto store = make_store(world, deadlines::start());
  CommunicatorOptions options;
  options.deadline_seconds = 60;
  const auto native = make_communicator(world, *store, options);
  options.backend = "mpi";
  const auto mpi = make_communicator(world, *store, options);
  // overlap() needs this capacity, too.
  const auto capacity =
      static_cast<std::size_t>(std::max<std::int64_t>(arguments.max_bytes, 64 << 20));
  const auto host = make_host_memory();
  const Buffer symmetric(native->memory_resource(), capacity, MemoryTag::communication);
  const Buffer plain(*host, capacity, MemoryTag::communication);
  const Buffer copied(*host, 2 * capacity, MemoryTag::communication);
  for (const Buffer* buffer : {&symmetric, &plain, &copied})
    std::memset(buffer->data(), 0, buffer->size());
  const int size = world.size;
  const auto through = [](Communicator& communicator, void* data) {
    return [&communicator, data](std::int64_t count) {
      communicator.all_reduce(data, data, count, DType::f32, ReduceOp::sum)->wait();
    };
  };
  std::vector<Contestant> contestants{
      {"native", through(*native, symmetric.data()), static_cast<float*>(symmetric.data())},
      {"native_plain", through(*native, plain.data()), static_cast<float*>(plain.data())},
      // The bytes that must cross between ordinary buffers of different ranks, copied by all ranks
      // concurrently within their own memory.
      {"copy_bound",
       [&](std::int64_t count) {
         const std::int64_t bytes = 4 * count * (size - 1) / size;
         auto* to = static_cast<std::byte*>(copied.data());
         std::memcpy(to, plain.data(), static_cast<std::size_t>(bytes));
         std::memcpy(to + bytes, plain.data(), static_cast<std::size_t>(bytes));
         native->barrier()->wait();
       },
       nullptr, false},
      // MPI's own call, without the overhead of the mpi backend.
      {"mpi",
       [&](std::int64_t count) {
         MPI_Allreduce(MPI_IN_PLACE, plain.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD);
       },
       static_cast<float*>(plain.data())},
      {"mpi_backend", through(*mpi, plain.data()), static_cast<float*>(plain.data())}};
  compare(*native, contestants, arguments);
  if (!arguments.overlap) return;
  volatile double sink = 0;
  overlap(*native, contestants[0], arguments.rounds, sink);
  overlap(*native, contestants[1], arguments.rounds, sink);
  overlap(*mpi, contestants[1], arguments.rounds, sink);
}

}  // namespace
}  // namespace shoal::collectives

int main(int argc, char** argv) {
  shoal::collectives::Arguments arguments;
  CLI::App app("all_reduce of native and MPI's, turn by turn; run it under mpirun");
  app.add_option("--min-bytes", arguments.min_bytes)->check(CLI::PositiveNumber);
  app.add_option("--max-bytes", arguments.max_bytes)->check(CLI::PositiveNumber);
  app.add_option("--rounds", arguments.rounds, "of which the median is printed")
      ->check(CLI::PositiveNumber);
  app.add_flag("!--no-overlap", arguments.overlap, "leave out what a computation hides");
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::collectives::run(arguments);
    return 0;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 1;
  }
}
