// The Communicator's own all_reduce, which bench/torch/all_reduce.py compares with PyTorch's calls.
#include "shoal/collectives/communicator.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace {

struct Ranks {
  std::shared_ptr<shoal::Store> store;
  std::unique_ptr<shoal::collectives::Communicator> communicator;
};

}  // namespace

extern "C" {

// Connects this rank to the others through files in `directory`. Null: it failed and printed the
// reason.
void* shoal_bench_connect(int rank, int size, const char* directory) {
  try {
    shoal::World world;
    world.rank = rank;
    world.size = size;
    world.launcher = shoal::Launcher::torchrun;
    auto ranks = std::make_unique<Ranks>();
    ranks->store = shoal::make_file_store(directory, "bench", size);
    ranks->communicator = shoal::collectives::make_communicator(world, *ranks->store);
    return ranks.release();
  } catch (const std::exception& problem) {
    fmt::print(stderr, "communicator: {}\n", problem.what());
    return nullptr;
  }
}

// Mean seconds of `calls` sums of `count` floats in ordinary memory; -1: it failed and printed the
// reason.
double shoal_bench_all_reduce(void* connected, std::int64_t count, int calls) {
  try {
    auto& communicator = *static_cast<Ranks*>(connected)->communicator;
    std::vector<float> numbers(static_cast<std::size_t>(count));
    communicator.barrier()->wait();
    const auto began = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call)
      communicator
          .all_reduce(numbers.data(), numbers.data(), count, shoal::DType::f32,
                      shoal::collectives::ReduceOp::sum)
          ->wait();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / calls;
  } catch (const std::exception& problem) {
    fmt::print(stderr, "communicator: {}\n", problem.what());
    return -1;
  }
}

}  // extern "C"
