// Published training throughput, predicted from machine files only. No parameter is fitted to it.
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/parallel/predict/predict.h"

namespace shoal::parallel {
namespace {

struct Published {
  int layers, channels, heads, tensor, pipeline, chunks, microbatch, batch, ranks;
  double teraflops;  // per device, with recomputation
};

// Predicted over published FLOP/s for a row of Narayanan et al. (SC21), table 1.
double ratio_of(const Published& row) {
  const nlohmann::json config = {{"model_type", "gpt2"},   {"vocab_size", 51200},
                                 {"n_embd", row.channels}, {"n_head", row.heads},
                                 {"n_layer", row.layers},  {"n_positions", 2048}};
  const ModelShape shape = model_shape(*nn::make_causal_lm(config, "test"));
  const Machine machine = find_machine("a100-megatron");
  ParallelPlan plan;
  plan.mesh = {.pipeline = row.pipeline, .tensor = row.tensor, .placement = Placement("PDT")};
  const int replica_batch = row.batch * row.tensor * row.pipeline / row.ranks;
  plan.pipeline.microbatches = replica_batch / row.microbatch;
  plan.pipeline.schedule =
      row.chunks > 1 ? ScheduleKind::virtual_interleaved : ScheduleKind::one_f_one_b;
  plan.pipeline.chunks = row.chunks;
  const int stages = row.pipeline * row.chunks;
  for (int stage = 0; stage < stages && stages > 1; ++stage)  // the ends share blocks' stages
    plan.pipeline.partition.counts +=
        fmt::format("{}{}", stage > 0 ? "," : "",
                    row.layers / stages + (stage == 0 || stage == stages - 1 ? 1 : 0));
  plan.tensor = {.prescaled_batch = true, .speed = true};
  plan.activations.checkpoint_group = 1;
  plan.precision.dtype = DType::f16;
  const Prediction p =
      predict({.model = shape,
               .machine = machine,
               .plan = plan,
               .run = {.ranks = row.ranks, .batch = replica_batch, .length = 2048}});
  return p.hfu * 312 / row.teraflops;
}

TEST(Published, MegatronOnA100) {
  for (const Published& row : {Published{24, 2304, 24, 1, 1, 1, 16, 512, 32, 137},
                               Published{36, 4096, 32, 4, 1, 1, 16, 512, 128, 142},
                               Published{48, 8192, 64, 8, 2, 1, 4, 1536, 512, 138},
                               Published{80, 12288, 96, 8, 8, 2, 2, 2304, 1536, 148},
                               Published{105, 20480, 128, 8, 35, 3, 1, 2520, 2520, 163}}) {
    const double ratio = ratio_of(row);  // predicted over published FLOP/s
    fmt::print("{} ranks, {} wide: {:.0f} TFLOP/s a GPU predicted, {:.0f} published, {:+.1f} %\n",
               row.ranks, row.channels, ratio * row.teraflops, row.teraflops, 100 * ratio - 100);
    EXPECT_NEAR(ratio, 1, 0.1) << row.channels;
  }
}

// llm.c: samples of 1,024 tokens in bf16 with fused attention, gradients summed in bf16.
struct LlmC {
  const char* machine;
  int layers, channels, heads, ranks, rows;
  double tokens_per_second;  // of all GPUs together
};

TEST(Published, LlmC) {
  for (const LlmC& row : {LlmC{"p5.48xlarge", 12, 768, 12, 1, 64, 475e3},
                          LlmC{"p5.48xlarge", 24, 1024, 16, 1, 32, 188e3},
                          LlmC{"p5.48xlarge", 36, 1280, 20, 1, 32, 90e3},
                          LlmC{"p5.48xlarge", 48, 1600, 25, 1, 16, 47e3},
                          LlmC{"p5.48xlarge", 48, 1600, 25, 8, 16, 1048576 / 2.80},
                          LlmC{"p4de.24xlarge", 12, 768, 12, 8, 64, 524288 / 0.3}}) {
    const nlohmann::json config = {{"model_type", "gpt2"},   {"vocab_size", 50304},
                                   {"n_embd", row.channels}, {"n_head", row.heads},
                                   {"n_layer", row.layers},  {"n_positions", 1024}};
    const ModelShape shape = model_shape(*nn::make_causal_lm(config, "test"));
    Machine machine = find_machine(row.machine);
    machine.software.gradient_bytes = 2;
    ParallelPlan plan;
    plan.precision.dtype = DType::bf16;
    plan.sharding.level = row.ranks > 1 ? 1 : 0;
    const Prediction p = predict({.model = shape,
                                  .machine = machine,
                                  .plan = plan,
                                  .run = {.ranks = row.ranks, .batch = row.rows, .length = 1024}});
    const double ratio = p.tokens_per_second / row.tokens_per_second;
    fmt::print("{} x {}, {} wide: {:.0f} tokens/s predicted, {:.0f} published, {:+.1f} %\n",
               row.ranks, row.machine, row.channels, p.tokens_per_second, row.tokens_per_second,
               100 * ratio - 100);
    EXPECT_NEAR(ratio, 1, 0.1) << row.channels;
  }
}

}  // namespace
}  // namespace shoal::parallel
