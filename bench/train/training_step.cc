// A benchmark server: runs one training step of a model per round (README.md,
// bench/peers/README.md).
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>

#include "workload.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/autograd/timing_dispatcher.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::bench {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::string variant = "f32", model = "gpt2";
  WorkloadOptions workload{};
  int threads = 0, steps = 1, warmup = 2, rounds = 0;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Linux: writing 5 sets VmHWM to the current size.
void reset_peak_rss() { std::ofstream("/proc/self/clear_refs") << "5"; }

std::int64_t peak_rss() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

class Training {
 public:
  Training(const Arguments& arguments, DType dtype, kernels::Kernels& kernels,
           MemoryResource& memory)
      : dispatcher_(direct_),
        context_(kernels, memory, dispatcher_),
        workload_(make_workload(arguments.model, arguments.workload, memory)) {
    context_.random.state = &state_;
    workload_.model->materialize(context_, DType::f32);
    const auto parameters = workload_.model->parameters();
    masters_.emplace(parameters, dtype, kernels, memory);
    nn::allocate_gradients(context_, parameters);
    optimizer_ = std::make_unique<nn::Optimizer>(kernels, memory, masters_->segments(),
                                                 nn::adamw({.weight_decay = 0.01}));
  }

  float step() {
    for (nn::Parameter* parameter : workload_.model->parameters()) parameter->clear_gradient();
    float loss = 0;
    {
      nn::Tape tape;
      context_.tape = &tape;
      const nn::LossOutput out = workload_.forward(context_);
      context_.tape = nullptr;
      loss = static_cast<float>(context_.read(out.loss_sum)) / workload_.targets;
      forward_ = now();
      tape.backward(context_, out.loss);
      backward_ = now();
    }
    context_.run("optimizer", {}, {}, [&] {
      optimizer_->step(state_, {.learning_rate = 1e-4, .max_gradient_norm = 1});
    });
    return loss;
  }

  // Seconds per step by operation, slowest first, and the unaccounted rest.
  ordered_json breakdown(double seconds, int steps) {
    std::vector<std::pair<double, std::string>> rows;
    double rest = seconds;
    for (const auto& [name, total] : dispatcher_.totals()) {
      rows.emplace_back(total.seconds / steps, name);
      rest -= total.seconds / steps;
    }
    std::sort(rows.rbegin(), rows.rend());
    ordered_json out;
    for (const auto& [time, name] : rows) out[name] = time;
    out["between_operations"] = rest;
    dispatcher_.clear();
    return out;
  }
  void clear() { dispatcher_.clear(); }
  double forward_end() const { return forward_; }
  double backward_end() const { return backward_; }

 private:
  nn::DirectDispatcher direct_;
  nn::TimingDispatcher dispatcher_;
  nn::Context context_;
  Workload workload_;
  kernels::StepState state_;
  std::optional<nn::MasterWeights> masters_;
  std::unique_ptr<nn::Optimizer> optimizer_;
  double forward_ = 0, backward_ = 0;
};

class Server {
 public:
  explicit Server(const Arguments& arguments)
      : arguments_(arguments),
        host_(make_host_memory()),
        pool_(*host_),
        memory_(pool_),
        kernels_(kernels::make_cpu_kernels({.threads = arguments.threads, .memory = &memory_})) {
    const bool products = arguments.variant.ends_with("-matmul");
    const DType dtype = parse_dtype(arguments.variant.substr(0, arguments.variant.find('-')));
    if (products)
      products_.emplace(product_shapes(arguments.model, arguments.workload), dtype, *kernels_,
                        memory_);
    else
      training_.emplace(arguments, dtype, *kernels_, memory_);
  }

  float step() {
    if (training_) return training_->step();
    products_->step();
    return 0;
  }

  ordered_json ready() {
    const double start = now();
    for (int i = 0; i < arguments_.warmup; ++i) step();
    if (training_) training_->clear();
    reset_peak_rss();
    memory_.reset_peaks();
    return {{"event", "ready"},
            {"variant", arguments_.variant},
            {"kernels", kernels_->describe()},
            {"warmup_seconds", now() - start}};
  }

  ordered_json round() {
    const double start = now();
    float loss = 0;
    double last = start;
    for (int i = 0; i < arguments_.steps; ++i) {
      last = now();
      loss = step();
    }
    const double end = now(), seconds = (end - start) / arguments_.steps;
    const double tokens = arguments_.workload.tokens();
    ordered_json row{{"operation", arguments_.model + "_step"},
                     {"peer", "shoal"},
                     {"variant", arguments_.variant},
                     {"batch", arguments_.workload.batch},
                     {"length", arguments_.workload.length},
                     {"dropout", arguments_.workload.dropout},
                     {"lora_r", arguments_.workload.lora_r},
                     {"steps", arguments_.steps},
                     {"step_seconds", seconds},
                     {"tokens_per_second", tokens / seconds},
                     {"loss", loss},
                     {"peak_rss_bytes", peak_rss()},
                     {"peak_allocated_bytes", memory_.total().peak},
                     {"peak_activation_bytes", memory_.usage(MemoryTag::activations).peak}};
    if (training_) {
      row["phases"] = {{"forward", training_->forward_end() - last},
                       {"backward", training_->backward_end() - training_->forward_end()},
                       {"optimizer", end - training_->backward_end()}};
      row["breakdown"] = training_->breakdown(seconds, arguments_.steps);
    } else {
      row["attention_share"] = attention_share(arguments_.model, arguments_.workload);
    }
    return row;
  }

 private:
  Arguments arguments_;
  std::unique_ptr<MemoryResource> host_;
  PoolMemory pool_;
  CountingMemory memory_;
  std::unique_ptr<kernels::Kernels> kernels_;
  std::optional<Training> training_;
  std::optional<Products> products_;
};

int serve(const Arguments& arguments) {
  Server server(arguments);
  const auto answer = [](const ordered_json& row) { std::cout << row.dump() << std::endl; };
  answer(server.ready());
  if (arguments.rounds > 0) {
    for (int i = 0; i < arguments.rounds; ++i) answer(server.round());
    return 0;
  }
  for (std::string line; std::getline(std::cin, line) && line != "quit";) {
    SHOAL_CHECK(line == "round", "unknown command '{}': round or quit", line);
    answer(server.round());
  }
  return 0;
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::restart_with_short_spins(argv);  // as `shoal train` does
  shoal::bench::Arguments arguments;
  CLI::App app("One training step of a model a round; answers `round` lines with JSON lines");
  app.add_option("variant", arguments.variant, "f32, bf16, f16, f32-matmul, bf16-matmul")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "f32-matmul", "bf16-matmul"}));
  app.add_option("--model", arguments.model)->check(CLI::IsMember(shoal::bench::workload_names()));
  app.add_option("--batch", arguments.workload.batch);
  app.add_option("--length", arguments.workload.length);
  app.add_option("--threads", arguments.threads, "0: available cores");
  app.add_option("--steps", arguments.steps, "steps a round");
  app.add_option("--warmup", arguments.warmup, "steps before the first round");
  app.add_option("--rounds", arguments.rounds, "run so many rounds without a driver");
  app.add_option("--dropout", arguments.workload.dropout, "all of the model's");
  app.add_option("--lora-r", arguments.workload.lora_r, "train only adapters of this width");
  app.add_flag("--gradient-checkpointing", arguments.workload.checkpointing);
  std::string lengths;
  app.add_option("--lengths", lengths,
                 "a file of samples' lengths, a batch a line; a round takes all batches");
  app.add_flag("--padded", arguments.workload.padded, "with --lengths: compute the padding too");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!lengths.empty()) {
      arguments.workload.lengths = shoal::bench::read_lengths(lengths);
      arguments.steps = static_cast<int>(arguments.workload.lengths.size());
    }
    return shoal::bench::serve(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shoal_bench_training_step: %s\n", error.what());
    return 1;
  }
}
