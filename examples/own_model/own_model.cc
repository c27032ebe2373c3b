// A custom model with a custom loss, on 2 pipeline stages of 2 tensor-parallel ranks each:
//   mpirun -n 4 own_model --pipeline 2 --tensor 2
// The model learns the sines of the numbers that it reads.
#include <algorithm>
#include <cmath>

#include <shoal/shoal.h>

namespace nn = shoal::nn;

struct Table final : nn::Unit {
  nn::Slot<nn::EmbeddingLike> rows{*this, "rows", std::make_unique<nn::Embedding>(100, 64, 0.5f)};
  nn::Value forward(nn::Context& context, const nn::Value&, const nn::ChainInput& input) override {
    return rows->forward(context, input.ids);
  }
};

struct Block final : nn::Unit {
  nn::Slot<nn::LayerNorm> norm{*this, "norm", std::make_unique<nn::LayerNorm>(64, 1e-5f)};
  nn::Slot<nn::Mlp> mlp{*this, "mlp",
                        std::make_unique<nn::Mlp>(nn::MlpConfig{.channels = 64, .inner = 256})};
  nn::Value forward(nn::Context& context, const nn::Value& x, const nn::ChainInput&) override {
    return nn::add(context, x, mlp->forward(context, norm->forward(context, x)));
  }
};

// Huber loss: quadratic for errors below 1, linear beyond.
float huber(float x, float target, float& slope) {
  slope = std::clamp(x - target, -1.0f, 1.0f);
  return slope * (x - target - slope / 2);
}

struct Head final : nn::LossUnit {
  nn::Slot<nn::Linear> linear{*this, "linear",
                              std::make_unique<nn::Linear>(nn::LinearConfig{.in = 64, .out = 1})};
  nn::Value scores(nn::Context& context, const nn::Value& x, const nn::ChainInput&) override {
    return linear->forward(context, x);
  }
  nn::LossOutput loss(nn::Context& context, const nn::Value& scores,
                      const nn::ChainInput& input) override {
    return nn::pointwise_loss(context, "huber", scores, input.targets, input.loss, huber);
  }
};

struct Numbers final : shoal::Dataset {
  std::int64_t size() const override { return 1000; }
  shoal::Sample get(std::int64_t index) const override {
    shoal::Sample sample;
    for (std::int64_t t = 0; t < 16; ++t) {
      sample.input_ids.push_back(static_cast<std::int32_t>((7 * index + 13 * t) % 100));
      sample.values.push_back(std::sin(0.1f * static_cast<float>(sample.input_ids.back())));
    }
    return sample;
  }
};

int main(int argc, char** argv) {
  const std::vector<shoal::Option> options = {{"pipeline", "1", "stages"},
                                              {"tensor", "1", "ranks that share each layer"}};
  return shoal::run(argc, argv, options, [](shoal::Job& job) {
    shoal::ParallelPlan plan;
    plan.mesh.pipeline = static_cast<int>(job.integer("pipeline"));
    plan.mesh.tensor = static_cast<int>(job.integer("tensor"));
    plan.pipeline.microbatches = 2;

    std::vector<std::unique_ptr<nn::Unit>> units;
    units.push_back(std::make_unique<Table>());
    for (int i = 0; i < 4; ++i) units.push_back(std::make_unique<Block>());
    shoal::Model model(
        job, std::make_unique<nn::Sequential>(64, std::move(units), std::make_unique<Head>()),
        plan);

    shoal::Optimizer optimizer(model);
    shoal::Batches batches(model, std::make_shared<Numbers>(),
                           {.size = 16, .labels = shoal::LabelsOf::sample});
    for (int step = 0; step < 100; ++step) {
      const double loss = model.train(batches.next());
      optimizer.step(1e-3, 1.0);
      if (step % 20 == 19) job.print("step {:3}  Huber loss {:.5f}\n", step, loss);
    }
  });
}
