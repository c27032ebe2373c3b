#include "shoal/parallel/calibrate/traced_step.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/autograd/timing_dispatcher.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/runtime/base/clock.h"

namespace shoal::parallel {
namespace {

constexpr int kSteps = 5, kVocabulary = 4096, kLength = 256;

class SmallModel {
 public:
  SmallModel(kernels::Kernels& kernels, MemoryResource& memory, DType dtype,
             const TracedModel& like)
      : dispatcher_(direct_),
        context_(kernels, memory, dispatcher_),
        model_(nn::make_causal_lm(like.config, "the model that is traced")) {
    context_.random.state = &state_;
    model_->materialize(context_, DType::f32);
    const auto parameters = model_->parameters();
    masters_.emplace(parameters, dtype, kernels, memory);
    nn::allocate_gradients(context_, parameters);
    optimizer_ =
        std::make_unique<nn::Optimizer>(kernels, memory, masters_->segments(), nn::adamw({}));
    ids_ = Tensor::empty({like.rows, like.length}, DType::i32, memory, MemoryTag::data);
    for (std::int64_t i = 0; i < ids_.count(); ++i)
      ids_.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * 2654435761 % kVocabulary);
  }

  // By kind of operation, with the time between them.
  StepTrace step() {
    dispatcher_.clear();
    for (nn::Parameter* parameter : model_->parameters()) parameter->clear_gradient();
    const auto start = Clock::now();
    {
      nn::Tape tape;
      context_.tape = &tape;
      nn::LossOptions loss;
      loss.loss_scale = 1 / static_cast<float>(ids_.count());
      const nn::LossOutput out = model_->forward(context_, ids_, ids_, loss);
      context_.tape = nullptr;
      tape.backward(context_, out.loss);
    }
    const double computed = seconds_since(start);
    StepTrace trace{.between = computed};
    for (const auto& [name, total] : dispatcher_.totals()) {
      double& part = name.starts_with("linear_cross_entropy") ? trace.head
                     : name.starts_with("linear")             ? trace.products
                     : name.starts_with("attention")          ? trace.attention
                                                              : trace.passes;
      part += total.seconds;
      trace.between -= total.seconds;
    }
    const auto update = Clock::now();
    optimizer_->step(state_, {.learning_rate = 1e-4, .max_gradient_norm = 1});
    trace.optimizer = seconds_since(update);
    return trace;
  }

  const nn::CausalLm& model() const { return *model_; }

 private:
  nn::DirectDispatcher direct_;
  nn::TimingDispatcher dispatcher_;
  nn::Context context_;
  kernels::StepState state_;
  std::unique_ptr<nn::CausalLm> model_;
  std::optional<nn::MasterWeights> masters_;
  std::unique_ptr<nn::Optimizer> optimizer_;
  Tensor ids_;
};

}  // namespace

TracedModel trace_step(RankBench& bench, kernels::Kernels& kernels, MemoryResource& memory,
                       DType dtype) {
  TracedModel traced{.config = {{"model_type", "gpt2"},
                                {"vocab_size", kVocabulary},
                                {"n_embd", 512},
                                {"n_head", 8},
                                {"n_layer", 4},
                                {"n_positions", kLength}},
                     .shape = {},
                     .rows = 4,
                     .length = kLength,
                     .trace = {}};
  SmallModel model(kernels, memory, dtype, traced);
  traced.shape = model_shape(model.model());
  model.step();
  std::vector<StepTrace> steps;
  for (int i = 0; i < kSteps; ++i) {
    bench.ranks().barrier()->wait();
    steps.push_back(model.step());
  }
  for (double StepTrace::* part : {&StepTrace::products, &StepTrace::attention, &StepTrace::passes,
                                   &StepTrace::head, &StepTrace::optimizer, &StepTrace::between}) {
    std::ranges::nth_element(steps, steps.begin() + kSteps / 2, {}, part);
    traced.trace.*part = bench.slowest(steps[kSteps / 2].*part);
  }
  return traced;
}

}  // namespace shoal::parallel
