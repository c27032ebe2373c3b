#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <thread>

#include "bench.h"
#include "harness/row.h"
#include <nlohmann/json.hpp>

#include "shoal/parallel/pipeline/executor.h"
#include "shoal/parallel/pipeline/generate.h"

namespace shoal::bench {
namespace {

using parallel::ScheduleKind;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Sleeps until the end of the computation's planned time, so that late wake-ups do not accumulate.
class SleepingStage final : public parallel::Stage {
 public:
  SleepingStage(MemoryResource& memory, double forward) : memory_(memory), forward_(forward) {}
  Message input(int) const override { return {{16}, DType::f32}; }
  Message output(int) const override { return {{16}, DType::f32}; }
  Tensor allocate(const Message& message) override {
    return Tensor::empty(message.shape, message.dtype, memory_, MemoryTag::activations);
  }
  bool first = false, last = false;
  Tensor forward(int, Tensor) override {
    compute(forward_);
    return last ? Tensor() : allocate(output(0));
  }
  Tensor backward(int, Tensor, bool weights_later) override {
    compute(weights_later ? forward_ : 2 * forward_);
    return first ? Tensor() : allocate(input(0));
  }
  void weight_backward(int) override { compute(forward_); }
  double busy = 0;

 private:
  void compute(double seconds) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds) * 0.97);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    busy += seconds;
  }
  MemoryResource& memory_;
  double forward_;
};

struct Bubble {
  ScheduleKind kind;
  int chunks;
};
constexpr std::array kCases = {
    Bubble{ScheduleKind::simple, 1},      Bubble{ScheduleKind::interleaved, 1},
    Bubble{ScheduleKind::one_f_one_b, 1}, Bubble{ScheduleKind::virtual_interleaved, 2},
    Bubble{ScheduleKind::zero_bubble, 1}, Bubble{ScheduleKind::zero_bubble_v, 2}};

}  // namespace

void measure_bubbles(const ParallelArguments& a, collectives::Communicator& world) {
  std::vector<std::string> names;
  for (const Bubble& c : kCases) names.emplace_back(name(c.kind));
  for (std::size_t i = 0; a.list && world.rank() == 0 && i < names.size(); ++i)
    std::printf("%s\n", names[i].c_str());
  if (a.list) return;
  const std::vector<bool> taken = chosen(a.only, names);
  const auto host = make_host_memory();
  const int microbatches = std::max(a.microbatches, 2 * world.size());
  if (world.rank() == 0 && !a.json)
    std::printf(
        "%d stages that sleep, %d microbatches, F = I = W = %.1f ms, median of %d\n"
        "%-22s %12s %12s %8s %10s %10s\n",
        world.size(), microbatches, a.forward_ms, a.rounds, "schedule", "simulated ms",
        "measured ms", "ratio", "bubble", "measured");
  for (std::size_t i = 0; i < kCases.size(); ++i) {
    if (!taken[i]) continue;
    const Bubble& c = kCases[i];
    parallel::ScheduleOptions options;
    options.kind = c.kind;
    options.ranks = world.size();
    options.microbatches = microbatches;
    options.chunks = c.chunks;
    const parallel::Schedule schedule = parallel::make_schedule(options);
    // The stages of a rank share its work.
    const double forward = a.forward_ms * 1e-3 / c.chunks;
    parallel::PipelineCosts costs;
    costs.stages = {{.forward = forward, .input_backward = forward, .weight_backward = forward}};
    const parallel::Simulation simulation = simulate(schedule, costs);
    std::map<int, std::unique_ptr<SleepingStage>> stages;
    std::map<int, parallel::Stage*> table;
    for (int stage = 0; stage < schedule.stages(); ++stage) {
      if (schedule.rank_of_stage[static_cast<std::size_t>(stage)] != world.rank()) continue;
      auto& made = stages[stage] = std::make_unique<SleepingStage>(*host, forward);
      made->first = stage == 0;
      made->last = stage + 1 == schedule.stages();
      table[stage] = made.get();
    }
    parallel::PipelineExecutor executor(schedule, world, table);
    std::vector<double> seconds;
    for (int round = -a.warmup; round < a.rounds; ++round) {
      world.barrier()->wait();
      const double began = now();
      executor.run();
      world.barrier()->wait();
      if (round >= 0) seconds.push_back(now() - began);
    }
    if (world.rank() != 0) continue;
    const double measured = percentile(seconds, 0.5);
    const double work = 3 * a.forward_ms * 1e-3 * microbatches;  // per rank
    if (a.json)
      std::printf("%s\n", nlohmann::ordered_json{{"schedule", name(c.kind)},
                                                 {"ranks", world.size()},
                                                 {"microbatches", microbatches},
                                                 {"simulated_seconds", simulation.time},
                                                 {"measured_seconds", measured},
                                                 {"ratio", measured / simulation.time},
                                                 {"bubble", simulation.bubble()},
                                                 {"measured_bubble", measured / work - 1},
                                                 {"machine", machine()},
                                                 {"commit", commit()}}
                              .dump()
                              .c_str());
    else
      std::printf("%-22s %12.2f %12.2f %8.4f %9.1f%% %9.1f%%\n", std::string(name(c.kind)).c_str(),
                  simulation.time * 1e3, measured * 1e3, measured / simulation.time,
                  simulation.bubble() * 100, (measured / work - 1) * 100);
  }
}

}  // namespace shoal::bench
