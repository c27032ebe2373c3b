#include "shoal/parallel/plan/legality.h"

#include <algorithm>
#include <numeric>

#include "shoal/nn/layers/conv1d.h"
#include "shoal/nn/layers/decoder_layers.h"
#include "shoal/nn/layers/feed_forward.h"
#include "shoal/nn/layers/self_attention.h"
#include "shoal/parallel/pipeline/generate.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// "1, 2, 4": the numbers up to `most` that divide all of `counts`.
std::string divisors(std::initializer_list<std::int64_t> counts, std::int64_t most) {
  std::vector<std::int64_t> found;
  for (std::int64_t d = 1; d <= most; ++d)
    if (std::ranges::all_of(counts, [d](std::int64_t count) { return count % d == 0; }))
      found.push_back(d);
  return fmt::format("{}", fmt::join(found, ", "));
}

// The product may exceed an int.
std::int64_t replica_of(const ParallelPlan& plan) {
  return std::int64_t{plan.mesh.pipeline} * plan.mesh.tensor;
}

constexpr std::int64_t kMostMicrobatches = 1'000'000;  // per step; a schedule lists them all

// Outputs of a layer that can become column-parallel; 0: another kind, which its maker checks.
std::int64_t width_of(const nn::Module& module) {
  if (const auto* const linear = dynamic_cast<const nn::Linear*>(&module))
    return linear->config().out;
  if (const auto* const conv = dynamic_cast<const nn::Conv1D*>(&module)) return conv->config().out;
  return 0;
}

class Examination {
 public:
  Examination(const ParallelPlan& plan, const RunShape& run, const LayoutModel& model)
      : plan_(plan), run_(run), model_(model) {}

  std::vector<LayoutProblem> examine() {
    if (plan_.mesh.pipeline < 1 || plan_.mesh.tensor < 1 || run_.ranks < 1) {
      add(fmt::format("{} ranks with pipeline_parallel_degree {} and tensor_parallel_degree {}",
                      run_.ranks, plan_.mesh.pipeline, plan_.mesh.tensor),
          "degrees are 1 or more");
      return problems_;
    }
    mesh();
    replicas();
    tensor();
    pipeline();
    sharding();
    if (plan_.activations.offload && plan_.activations.checkpoint_group == 0)
      add("offload_activations is set and activation checkpointing is not",
          "what is offloaded are checkpoints: set activation_checkpointing too");
    return problems_;
  }

 private:
  void add(std::string what, std::string remedy) {
    problems_.push_back({std::move(what), std::move(remedy)});
  }
  std::int64_t replica() const { return replica_of(plan_); }

  void mesh() {
    if (run_.ranks % replica() == 0) return;
    add(fmt::format("{} not divide by pipeline_parallel_degree {} x "
                    "tensor_parallel_degree {} = {}",
                    run_.ranks == 1 ? "1 rank does" : fmt::format("{} ranks do", run_.ranks),
                    plan_.mesh.pipeline, plan_.mesh.tensor, replica()),
        run_.ranks < replica()
            ? fmt::format("start at least {} ranks; partitions are not replicas", replica())
            : fmt::format("start {} or {} ranks", run_.ranks / replica() * replica(),
                          (run_.ranks / replica() + 1) * replica()));
  }

  // ddp = false must not be ignored silently.
  void replicas() {
    const int ranks = run_.ranks;
    if (plan_.mesh.ddp.value_or(true) || ranks == replica() || ranks % replica() != 0) return;
    add(fmt::format("ddp is false, but {} ranks make {} replicas of pipeline_parallel_degree {} x "
                    "tensor_parallel_degree {}, whose gradients must be summed",
                    ranks, ranks / replica(), plan_.mesh.pipeline, plan_.mesh.tensor),
        fmt::format("set ddp to true, or start {} rank{}", replica(), replica() == 1 ? "" : "s"));
  }

  void tensor() {
    const int tp = plan_.mesh.tensor;
    if (tp == 1) return;
    if (model_.heads % tp != 0 || model_.inner % tp != 0)
      add(fmt::format("{} attention heads and an inner width of {} do not both divide by "
                      "tensor_parallel_degree {}",
                      model_.heads, model_.inner, tp),
          fmt::format("degrees that do: {}",
                      divisors({model_.heads, model_.inner},
                               std::min<std::int64_t>(64, std::max(model_.heads, model_.inner)))));
    if (plan_.tensor.prescaled_batch && !plan_.tensor.speed && run_.length % tp != 0)
      add(fmt::format("{} positions do not divide by tensor_parallel_degree {}, over which "
                      "optimize=memory splits them",
                      run_.length, tp),
          fmt::format("use {} or {} positions, or optimize=speed", run_.length / tp * tp,
                      (run_.length / tp + 1) * tp));
  }

  void pipeline() {
    if (plan_.pipeline.microbatches < 1 ||
        run_.batch % std::max(plan_.pipeline.microbatches, 1) != 0) {
      add(fmt::format("a batch of {} does not divide into {} microbatches", run_.batch,
                      plan_.pipeline.microbatches),
          fmt::format("numbers of microbatches that do: {}",
                      divisors({run_.batch}, std::min<std::int64_t>(64, run_.batch))));
      return;
    }
    const std::int64_t stages = std::int64_t{plan_.mesh.pipeline} * plan_.pipeline.chunks;
    if (stages > model_.units) {
      add(fmt::format("{} stages (pipeline_parallel_degree {} x {} a rank) of a model of {} units",
                      stages, plan_.mesh.pipeline, plan_.pipeline.chunks, model_.units),
          fmt::format("blocks, embeddings and head are units; use at most {} stages",
                      model_.units));
      return;
    }
    const std::int64_t microbatches = std::int64_t{plan_.pipeline.microbatches} * run_.accumulated;
    if (microbatches > kMostMicrobatches) {
      add(fmt::format("{} microbatches x {} accumulated are {} of one step",
                      plan_.pipeline.microbatches, run_.accumulated, microbatches),
          fmt::format("use at most {}", kMostMicrobatches));
      return;
    }
    ScheduleOptions options = schedule_options(plan_);
    options.microbatches = static_cast<int>(microbatches);
    try {
      make_schedule(options);
    } catch (const Error& refusal) {
      add(refusal.message(),
          refusal.remedy().empty() ? "choose another schedule" : refusal.remedy());
    }
  }

  void sharding() {
    if (plan_.sharding.level < 0 || plan_.sharding.level > 3)
      add(fmt::format("sharding level {}", plan_.sharding.level),
          "0: none; 1: optimizer state; 2: gradients too; 3: parameters too");
    if (run_.ranks % replica() != 0 || plan_.sharding.degree == 0) return;
    const std::int64_t data = run_.ranks / replica();
    if (plan_.sharding.degree < 0 || data % std::max(plan_.sharding.degree, 1) != 0)
      add(fmt::format("sharded_data_parallel_degree {} does not divide the {} replicas",
                      plan_.sharding.degree, data),
          fmt::format("degrees that do: {}", divisors({data}, data)));
  }

  const ParallelPlan& plan_;
  const RunShape& run_;
  const LayoutModel& model_;
  std::vector<LayoutProblem> problems_;
};

void collect(const nn::Module& module, LayoutModel& model) {
  if (const auto* const attention = dynamic_cast<const nn::CausalSelfAttention*>(&module))
    model.heads = std::gcd(model.heads, attention->config().heads);
  if (const auto* const attention = dynamic_cast<const nn::SelfAttention*>(&module))
    model.heads = std::gcd(model.heads, attention->config().heads);
  // Ranks get whole groups of heads, so each needs a key head of its own.
  if (const auto* const attention = dynamic_cast<const nn::GroupedSelfAttention*>(&module))
    model.heads = std::gcd(model.heads, attention->config().key_heads);
  if (const auto* const mlp = dynamic_cast<const nn::GatedMlp*>(&module))
    model.inner = std::gcd(model.inner, mlp->config().inner);
  if (const auto* const mlp = dynamic_cast<const nn::FeedForward*>(&module))
    model.inner = std::gcd(model.inner, mlp->config().inner);
  if (const auto* const mlp = dynamic_cast<const nn::Mlp*>(&module))
    model.inner = std::gcd(model.inner, width_of(*mlp->c_fc));
  for (const nn::Module::Child& child : module.children()) collect(*child.module, model);
}

}  // namespace

LayoutModel layout_model(const nn::Chain& chain) {
  LayoutModel model{.units = chain.units()};
  collect(chain, model);
  return model;
}

std::vector<LayoutProblem> find_problems(const ParallelPlan& plan, const RunShape& run,
                                         const LayoutModel& model) {
  return Examination(plan, run, model).examine();
}

std::vector<std::string> find_idle_options(const ParallelPlan& plan, int ranks) {
  std::vector<std::string> idle;
  if (plan.mesh.tensor == 1 && (plan.tensor.prescaled_batch || plan.tensor.speed))
    idle.emplace_back(
        "prescaled_batch and optimize change nothing where tensor_parallel_degree is 1");
  if (plan.mesh.tensor > 1 && plan.tensor.speed && !plan.tensor.prescaled_batch)
    idle.emplace_back(
        "optimize=speed changes nothing without prescaled_batch: each rank has activations of its "
        "own batch only");
  const std::int64_t replica = std::max<std::int64_t>(replica_of(plan), 1);
  if (!plan.mesh.ddp && ranks > replica)
    idle.push_back(
        fmt::format("ddp is not given: the gradients of the {} replicas ({} ranks) are summed all "
                    "the same",
                    ranks / replica, ranks));
  if (plan.sharding.level > 0 && ranks == replica)
    idle.emplace_back("there is one replica, over which nothing is sharded");
  else if (plan.sharding.level > 0 && plan.sharding.degree == 1)
    idle.emplace_back(
        "sharded_data_parallel_degree 1 is a shard group of one rank: nothing is cut");
  if (plan.sharding.level == 0 && plan.sharding.degree > 1)
    idle.push_back(
        fmt::format("sharded_data_parallel_degree {} changes nothing at sharding level 0",
                    plan.sharding.degree));
  if (plan.mesh.pipeline == 1 && plan.pipeline.chunks == 1 &&
      plan.pipeline.schedule != ScheduleKind::simple &&
      plan.pipeline.schedule != ScheduleKind::interleaved)
    idle.push_back(fmt::format("a pipeline of one rank: {} is the order of its microbatches only",
                               name(plan.pipeline.schedule)));
  return idle;
}

void check_layout(const ParallelPlan& plan, const RunShape& run, const LayoutModel& model) {
  std::string text;
  for (const LayoutProblem& problem : find_problems(plan, run, model))
    text += fmt::format("{}{}; {}", text.empty() ? "" : "\n", problem.what, problem.remedy);
  if (!text.empty()) throw Error(ErrorCode::invalid_argument, text);
}

}  // namespace shoal::parallel
