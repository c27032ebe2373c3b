// A benchmark server: one training step of GPT-2 a round (README.md, bench/peers/README.md).
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>

#include "gpt2_products.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "shoal/nn/autograd/timing_dispatcher.h"
#include "shoal/nn/models/gpt2/model.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::bench {
namespace {

using nlohmann::ordered_json;

struct Arguments {
  std::string variant = "f32", preset = "gpt2";
  std::int64_t batch = 4, length = 512;
  int threads = 0, steps = 1, warmup = 2, rounds = 0;
  double dropout = 0;
  bool checkpointing = false;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Linux: writing 5 sets VmHWM to the present size.
void reset_peak_rss() { std::ofstream("/proc/self/clear_refs") << "5"; }

std::int64_t peak_rss() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

class Training {
 public:
  Training(const nn::Gpt2Config& config, const Arguments& arguments, DType dtype,
           kernels::Kernels& kernels, MemoryResource& memory)
      : dispatcher_(direct_), context_(kernels, memory, dispatcher_), model_(config) {
    context_.random.state = &state_;
    model_.set_gradient_checkpointing(arguments.checkpointing);
    model_.materialize(context_, DType::f32);
    const auto parameters = model_.parameters();
    masters_.emplace(parameters, dtype, kernels, memory);
    nn::allocate_gradients(context_, parameters);
    optimizer_ = nn::make_adamw(kernels, memory, masters_->segments(), {.weight_decay = 0.01});
    ids_ = Tensor::empty({arguments.batch, arguments.length}, DType::i32, memory, MemoryTag::data);
    targets_ = Tensor::empty(ids_.shape(), DType::i32, memory, MemoryTag::data);
    for (std::int64_t i = 0; i < ids_.count(); ++i) {
      const kernels::RandomSite site{.seed = 1, .site = 7};
      const auto bits = kernels::random_bits(site, 0, static_cast<std::uint64_t>(i));
      ids_.data<std::int32_t>()[i] = static_cast<std::int32_t>(bits % config.vocab_size);
      targets_.data<std::int32_t>()[i] = static_cast<std::int32_t>((bits >> 7) % config.vocab_size);
    }
  }

  float step() {
    for (nn::Parameter* parameter : model_.parameters()) parameter->clear_gradient();
    float loss = 0;
    {
      nn::Tape tape;
      context_.tape = &tape;
      const float tokens = static_cast<float>(targets_.count());
      const nn::LossOutput out =
          model_.forward(context_, ids_, targets_, {.loss_scale = 1 / tokens});
      context_.tape = nullptr;
      loss = static_cast<float>(context_.read(out.loss_sum)) / tokens;
      forward_ = now();
      tape.backward(context_, out.loss);
      backward_ = now();
    }
    context_.run("optimizer", {}, {}, [&] {
      optimizer_->step(state_, {.learning_rate = 1e-4, .max_gradient_norm = 1});
    });
    return loss;
  }

  // Seconds a step by operation, dearest first, and what no operation accounts for.
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
  nn::Gpt2 model_;
  kernels::StepState state_;
  std::optional<nn::MasterWeights> masters_;
  std::unique_ptr<nn::Optimizer> optimizer_;
  Tensor ids_, targets_;
  double forward_ = 0, backward_ = 0;
};

class Server {
 public:
  explicit Server(const Arguments& arguments)
      : arguments_(arguments),
        host_(make_host_memory()),
        pool_(*host_),
        memory_(pool_),
        kernels_(kernels::make_cpu_kernels({.threads = arguments.threads, .memory = &memory_})),
        config_(nn::Gpt2Config::preset(arguments.preset)) {
    config_.resid_pdrop = config_.embd_pdrop = config_.attn_pdrop = arguments.dropout;
    const bool products = arguments.variant.ends_with("-matmul");
    const DType dtype = parse_dtype(arguments.variant.substr(0, arguments.variant.find('-')));
    if (products)
      products_.emplace(config_, arguments.batch * arguments.length, dtype, *kernels_, memory_);
    else
      training_.emplace(config_, arguments, dtype, *kernels_, memory_);
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
    ordered_json row{
        {"operation", arguments_.preset + "_step"},
        {"peer", "shoal"},
        {"variant", arguments_.variant},
        {"batch", arguments_.batch},
        {"length", arguments_.length},
        {"steps", arguments_.steps},
        {"step_seconds", seconds},
        {"tokens_per_second", static_cast<double>(arguments_.batch * arguments_.length) / seconds},
        {"loss", loss},
        {"peak_rss_bytes", peak_rss()},
        {"peak_allocated_bytes", memory_.total().peak},
        {"peak_activation_bytes", memory_.usage(MemoryTag::activations).peak}};
    if (training_) {
      row["phases"] = {{"forward", training_->forward_end() - last},
                       {"backward", training_->backward_end() - training_->forward_end()},
                       {"optimizer", end - training_->backward_end()}};
      row["breakdown"] = training_->breakdown(seconds, arguments_.steps);
    }
    return row;
  }

 private:
  Arguments arguments_;
  std::unique_ptr<MemoryResource> host_;
  PoolMemory pool_;
  CountingMemory memory_;
  std::unique_ptr<kernels::Kernels> kernels_;
  nn::Gpt2Config config_;
  std::optional<Training> training_;
  std::optional<Gpt2Products> products_;
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
  CLI::App app("One training step of GPT-2 a round; answers `round` lines with JSON lines");
  app.add_option("variant", arguments.variant, "f32, bf16, f16, f32-matmul, bf16-matmul")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "f32-matmul", "bf16-matmul"}));
  app.add_option("--preset", arguments.preset, "gpt2, gpt2-medium, gpt2-large, gpt2-xl");
  app.add_option("--batch", arguments.batch);
  app.add_option("--length", arguments.length);
  app.add_option("--threads", arguments.threads, "0: available cores");
  app.add_option("--steps", arguments.steps, "steps a round");
  app.add_option("--warmup", arguments.warmup, "steps before the first round");
  app.add_option("--rounds", arguments.rounds, "run so many rounds without a driver");
  app.add_option("--dropout", arguments.dropout);
  app.add_flag("--gradient-checkpointing", arguments.checkpointing);
  CLI11_PARSE(app, argc, argv);
  try {
    return shoal::bench::serve(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "shoal_bench_gpt2_step: %s\n", error.what());
    return 1;
  }
}
