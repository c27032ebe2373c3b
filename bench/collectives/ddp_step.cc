// A data-parallel step that sleeps instead of computing: measures how much communication the
// Reducer hides. Runs one process per rank; rank 0 prints one JSON line per step (README.md).
// ddp.py compares it with PyTorch's DistributedDataParallel.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <span>
#include <thread>

#include "ddp_models.h"
#include "harness/row.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/parallel/data/reducer.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::bench {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::string model = "gpt2";
  double forward_ms = 0, backward_ms = 0, bucket_mb = 25, first_bucket_mb = 1;
  int in_flight = 0, steps = 3, warmup = 3;
  bool describe = false, overlap_forward = false;
  collectives::CommunicatorOptions communicator;
};

void sleep_for(double seconds) {
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// The model's description for the peer: bench/peers/pytorch_ddp.py.
ordered_json describe(const DdpModel& model) {
  ordered_json layers = ordered_json::array();
  for (const DdpModel::Layer& layer : model.layers) {
    ordered_json parameters = ordered_json::array();
    for (const nn::Parameter* parameter : layer.parameters) {
      std::vector<std::int64_t> shape;
      for (int dim = 0; dim < parameter->shape().rank(); ++dim)
        shape.push_back(parameter->shape()[dim]);
      parameters.push_back({{"name", parameter->name()}, {"shape", shape}});
    }
    layers.push_back({{"name", layer.name}, {"parameters", std::move(parameters)}});
  }
  return {{"model", model.name}, {"layers", std::move(layers)}};
}

class DdpStep {
 public:
  DdpStep(const Arguments& arguments, const DdpModel& model,
          collectives::Communicator& communicator)
      : arguments_(arguments),
        model_(model),
        communicator_(communicator),
        reducer_(model.parameters, communicator,
                 {.bucket_bytes = bytes(arguments.bucket_mb),
                  .first_bucket_bytes = bytes(arguments.first_bucket_mb),
                  .buckets_in_flight = arguments.in_flight,
                  .priority = arguments.overlap_forward ? parallel::BucketPriority::forward
                                                        : parallel::BucketPriority::readiness}) {}

  // Measures from the start of one forward to the start of the next. With --overlap-forward, the
  // last reductions of a step run behind the next forward and are counted there.
  void run() {
    communicator_.barrier()->wait();
    parallel::ReducerStatistics before;
    for (int step = 0; step < arguments_.warmup + arguments_.steps; ++step) {
      const auto begin = Clock::now();
      forward(step);
      if (arguments_.overlap_forward && step > 0) reducer_.finish();
      backward(step);
      if (arguments_.overlap_forward) {
        reducer_.flush();
      } else {
        reducer_.finish();
        for (const nn::Parameter* parameter : model_.parameters) check(*parameter, step);
      }
      const double seconds = seconds_since(begin);
      const parallel::ReducerStatistics statistics = reducer_.statistics();
      if (step >= arguments_.warmup) report(seconds, statistics - before);
      before = statistics;
    }
    if (arguments_.overlap_forward) reducer_.finish();
  }
  bool right() const { return right_; }

 private:
  static std::int64_t bytes(double mb) { return static_cast<std::int64_t>(mb * (1 << 20)); }
  double layers() const { return static_cast<double>(model_.layers.size()); }

  // Before a layer's sleep, waits until its parameters are reduced, and checks their gradients.
  void forward(int step) {
    for (std::size_t i = model_.layers.size(); i-- > 0;) {
      for (const nn::Parameter* parameter : model_.layers[i].parameters) {
        if (!arguments_.overlap_forward || step == 0) continue;
        reducer_.wait_for(*parameter);
        check(*parameter, step - 1);
      }
      sleep_for(arguments_.forward_ms * 1e-3 / layers());
    }
  }

  void backward(int step) {
    reducer_.begin_step();
    reducer_.arm();
    for (nn::Parameter* parameter : model_.parameters) parameter->begin_use();
    for (const DdpModel::Layer& layer : model_.layers) {
      sleep_for(arguments_.backward_ms * 1e-3 / layers());
      for (nn::Parameter* parameter : layer.parameters) {
        parameter->accumulate();
        std::fill_n(parameter->gradient.data<float>(), parameter->shape().count(),
                    value(communicator_.rank(), step));
        parameter->end_use();
      }
    }
  }

  static float value(int rank, int step) { return static_cast<float>((rank + 1) * (step + 1)); }

  void check(const nn::Parameter& parameter, int step) {
    const int ranks = communicator_.size();
    const int of_ranks = ranks * (ranks + 1) / 2;  // 1 + 2 + ... + ranks
    const auto sum = static_cast<float>((step + 1) * of_ranks);
    const std::int64_t count = parameter.shape().count();
    const float* gradient = parameter.gradient.const_data<float>();
    for (const std::int64_t i : {std::int64_t{0}, count / 2, count - 1})
      right_ = right_ && gradient[i] == sum;
  }

  void report(double seconds, const parallel::ReducerStatistics& statistics) const {
    if (communicator_.rank() != 0) return;
    const double computed = (arguments_.forward_ms + arguments_.backward_ms) * 1e-3;
    std::cout << ordered_json{{"operation", "ddp_step"},
                              {"peer", "shoal"},
                              {"model", model_.name},
                              {"bytes", statistics.reduced_bytes},
                              {"ranks", communicator_.size()},
                              {"dtype", "f32"},
                              {"backend", communicator_.backend()},
                              {"bucket_bytes", bytes(arguments_.bucket_mb)},
                              {"buckets", reducer_.plan().buckets.size()},
                              {"buckets_in_flight", arguments_.in_flight},
                              {"overlap_forward", arguments_.overlap_forward},
                              {"forward_seconds", arguments_.forward_ms * 1e-3},
                              {"backward_seconds", arguments_.backward_ms * 1e-3},
                              {"step_seconds", seconds},
                              {"exposed_seconds", std::max(0.0, seconds - computed)},
                              {"waited_seconds", statistics.exposed_seconds},
                              {"hidden_share_of_bytes", statistics.hidden_share()},
                              {"verified", right_},
                              {"machine", machine()},
                              {"commit", commit()}}
                     .dump()
              << std::endl;
  }

  const Arguments& arguments_;
  const DdpModel& model_;
  collectives::Communicator& communicator_;
  parallel::Reducer reducer_;
  bool right_ = true;
};

// Rank 0 serves the store, so it leaves last. The other ranks ignore that the store is gone.
void leave(const World& world, Store& store, Deadline deadline) {
  if (world.rank == 0) {
    std::vector<std::string> keys;
    for (int rank = 1; rank < world.size; ++rank) keys.push_back(fmt::format("left/{}", rank));
    store.wait(keys, deadline);
    return;
  }
  try {
    store.set(fmt::format("left/{}", world.rank), "");
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::peer_lost) throw;
  }
}

int run(const Arguments& arguments) {
  if (arguments.describe) {
    std::cout << describe(make_ddp_model(arguments.model)).dump() << std::endl;
    return 0;
  }
  const Deadline deadline = Deadline::in_seconds(arguments.communicator.deadline_seconds);
  World world = discover_world();
  const auto store = make_store(world, deadline);
  if (world.size > 1) settle_nodes(world, *store, deadline);
  bool right = false;
  {
    const auto communicator = make_communicator(world, *store, arguments.communicator);
    const DdpModel model = make_ddp_model(arguments.model);  // its gradients are symmetric memory
    DdpStep step(arguments, model, *communicator);
    step.run();
    right = step.right();
    communicator->barrier()->wait();  // keep the memory until no rank maps it
  }
  leave(world, *store, deadline);
  if (!right) std::fprintf(stderr, "shoal_bench_ddp_step: rank %d: wrong sums\n", world.rank);
  return right ? 0 : 1;
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::bench::Arguments arguments;
  CLI::App app("A data-parallel step with sleeps for computation; run it under mpirun");
  app.add_option("model", arguments.model, "gpt2 (124M) or albert (base, 11.7M)");
  app.add_flag("--describe", arguments.describe, "print the model as JSON, for the peer, and end");
  app.add_option("--forward-ms", arguments.forward_ms, "sleep of a whole forward");
  app.add_option("--backward-ms", arguments.backward_ms, "sleep of a whole backward");
  app.add_flag("--overlap-forward", arguments.overlap_forward,
               "begin the next forward while what it does not need yet is being reduced");
  app.add_option("--bucket-mb", arguments.bucket_mb)->check(CLI::PositiveNumber);
  app.add_option("--first-bucket-mb", arguments.first_bucket_mb)->check(CLI::PositiveNumber);
  app.add_option("--in-flight", arguments.in_flight, "buckets; 0: no bound")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--steps", arguments.steps);
  app.add_option("--warmup", arguments.warmup, "steps before the first that is printed");
  app.add_option("--backend", arguments.communicator.backend, "native, mpi or nccl");
  app.add_option("--algorithm", arguments.communicator.algorithm);
  app.add_option("--deadline", arguments.communicator.deadline_seconds, "seconds of any wait")
      ->default_val(shoal::deadlines::seconds());
  CLI11_PARSE(app, argc, argv);
  try {
    return shoal::bench::run(arguments);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "shoal_bench_ddp_step: %s\n", problem.what());
    return 1;
  }
}
