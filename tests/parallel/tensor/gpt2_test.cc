// A GPT-2 with replaced layers compared with the same model on one rank: initial values, losses of
// three steps, gradients of the first step.
#include "parallel/tensor/parts.h"
#include <gmock/gmock.h>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/parallel/tensor/replace.h"

namespace shoal::parallel {
namespace {

constexpr std::int64_t kSamples = 3;

nn::DecoderConfig tiny(bool tied) {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = 61;  // not divisible by 2, 3 or 4
  config.max_position_embeddings = 24;
  config.hidden_size = 24;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 12;
  config.tie_word_embeddings = tied;
  config.initializer_range = 0.2;
  return config;
}

struct Data {
  std::int64_t samples, positions;  // of the group
  Tensor ids, targets, key_mask;
};

Data make_data(Rig& rig, const Layout& layout) {
  Data data;
  data.samples = layout.split == ActivationSplit::batch ? kSamples * layout.tp : kSamples;
  data.positions = layout.split != ActivationSplit::sequence ? 11 : layout.tp == 3 ? 15 : 12;
  const Shape shape{data.samples, data.positions};
  std::vector<std::int32_t> ids, targets;
  std::uint32_t state = 5;
  for (std::int64_t i = 0; i < shape.count(); ++i) {
    state = state * 1664525u + 1013904223u;
    ids.push_back(static_cast<std::int32_t>((state >> 8) % 61));
    targets.push_back(i % 7 == 2 ? -100 : static_cast<std::int32_t>((state >> 16) % 61));
  }
  data.ids = rig.ids(ids, shape);
  data.targets = rig.ids(targets, shape);
  data.key_mask = rig.input(shape, DType::u8);
  for (std::int64_t i = 0; i < shape.count(); ++i)
    data.key_mask.data<std::uint8_t>()[i] = i % data.positions < 2 + i / data.positions ? 0 : 1;
  return data;
}

struct Training {
  std::vector<float> losses;                           // the sum of each step
  std::vector<std::vector<float>> initial, gradients;  // of the first step
};

struct Settings {
  bool checkpointing = false;
  DType dtype = DType::f32;
  int steps = 3;
};

// `complete` adds the other ranks' contributions to a parameter's gradient.
Training train(Rig& rig, nn::CausalLm& model, const Data& data, std::uint32_t first_sample,
               const Settings& settings,
               const std::function<std::vector<float>(const nn::Parameter&)>& complete) {
  Training out;
  const testing::Reachable<kernels::StepState> reachable_state;
  kernels::StepState& state = *reachable_state;
  rig.context.random.state = &state;
  rig.context.random.sample_first = first_sample;
  model.set_gradient_checkpointing(settings.checkpointing);
  model.materialize(rig.context, settings.dtype);
  const auto parameters = model.parameters();
  nn::allocate_gradients(rig.context, parameters);
  for (nn::Parameter* parameter : parameters) out.initial.push_back(nn::floats(parameter->value));
  for (int step = 0; step < settings.steps; ++step, ++state.step) {
    for (nn::Parameter* parameter : parameters) parameter->clear_gradient();
    nn::Tape tape;
    rig.context.tape = &tape;
    const nn::LossOutput loss = model.forward(rig.context, data.ids, data.targets,
                                              {.label_smoothing = 0.1f}, data.key_mask);
    rig.context.tape = nullptr;
    tape.backward(rig.context, loss.loss);
    out.losses.push_back(static_cast<float>(rig.context.read(loss.loss_sum)));
    for (nn::Parameter* parameter : parameters) {
      EXPECT_EQ(parameter->uses(), 0) << parameter->name();
      std::vector<float> gradient = complete(*parameter);
      if (settings.dtype == DType::f32) {
        std::vector<float> value = testing::values_of<float>(parameter->value);
        for (std::size_t i = 0; i < gradient.size(); ++i)
          value[i] -= 0.2f / static_cast<float>(loss.targets) * gradient[i];
        testing::set_values(parameter->value, value);
      }
      if (step == 0) out.gradients.push_back(std::move(gradient));
    }
  }
  return out;
}

Training on_one_rank(const Layout& layout, bool tied, const Settings& settings) {
  Rig rig;
  nn::CausalLm model(tiny(tied));
  const Data data = make_data(rig, layout);
  return train(rig, model, data, 100, settings,
               [](const nn::Parameter& parameter) { return nn::floats(parameter.gradient); });
}

// Trains the replaced model on this rank.
Training on_this_rank(const TensorParallel& group, nn::CausalLm& model, const Settings& settings) {
  Rig rig;
  apply_tensor_parallelism(model, group);
  Data data = make_data(rig, {group.size(), group.split});
  std::uint32_t first_sample = 100;
  if (group.split == ActivationSplit::batch) {
    first_sample += static_cast<std::uint32_t>(group.rank() * kSamples);
    data.ids = local_part(rig, group, data.ids);
    data.targets = local_part(rig, group, data.targets);
    data.key_mask = local_part(rig, group, data.key_mask);
  }
  const ForwardCoordinates coordinates(rig.context, group, data.positions);
  Training out =
      train(rig, model, data, first_sample, settings,
            [&](const nn::Parameter& parameter) { return complete_gradient(group, parameter); });
  for (nn::Parameter* parameter : model.parameters()) {  // the rig's memory ends here
    parameter->value = {};
    parameter->gradient = {};
  }
  return out;
}

struct Gpt2Case {
  Layout layout;
  bool tied;
};
void PrintTo(const Gpt2Case& test, std::ostream* out) {
  PrintTo(test.layout, out);
  *out << (test.tied ? " tied" : " untied");
}

class TensorParallelGpt2 : public ::testing::TestWithParam<Gpt2Case> {};

TEST_P(TensorParallelGpt2, TrainsAsOneRank) {
  const auto [layout, tied] = GetParam();
  const Training expected = on_one_rank(layout, tied, {});
  on_group(layout, [&, is_tied = tied](const TensorParallel& group) {
    nn::CausalLm model(tiny(is_tied));
    const Training ours = on_this_rank(group, model, {});
    ASSERT_EQ(ours.losses.size(), expected.losses.size());
    for (std::size_t step = 0; step < ours.losses.size(); ++step)
      EXPECT_NEAR(ours.losses[step], expected.losses[step], 2e-5 * expected.losses[step])
          << "step " << step;
    const auto parameters = model.parameters();
    ASSERT_EQ(parameters.size(), expected.gradients.size());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_EQ(ours.initial[i], boxes_of(*parameters[i], expected.initial[i]))
          << parameters[i]->name();
      EXPECT_LT(distance(ours.gradients[i], boxes_of(*parameters[i], expected.gradients[i])), 1e-5)
          << parameters[i]->name();
    }
  });
  EXPECT_LT(expected.losses.back(), expected.losses.front());
}

std::vector<Gpt2Case> gpt2_cases() {
  std::vector<Gpt2Case> all;
  for (const Layout& layout : layouts({2, 3, 4}))
    for (const bool tied : {true, false}) all.push_back({layout, tied});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Layouts, TensorParallelGpt2, ::testing::ValuesIn(gpt2_cases()),
                         [](const auto& test) {
                           return name_of(test.param.layout) + (test.param.tied ? "tied" : "own");
                         });

// Recomputation repeats the collectives with the same random numbers.
TEST(TensorParallelGpt2Once, CheckpointingChangesNoBit) {
  for (const Layout& layout : layouts({2}))
    on_group(layout, [](const TensorParallel& group) {
      nn::CausalLm plain(tiny(true)), again(tiny(true));
      const Training expected = on_this_rank(group, plain, {.steps = 2});
      const Training ours = on_this_rank(group, again, {.checkpointing = true, .steps = 2});
      EXPECT_EQ(ours.losses, expected.losses);
      EXPECT_EQ(ours.gradients, expected.gradients);
    });
}

TEST(TensorParallelGpt2Once, InBf16) {
  const Settings settings{.dtype = DType::bf16, .steps = 1};
  for (const Layout& layout : layouts({2})) {
    const Training expected = on_one_rank(layout, true, settings);
    on_group(layout, [&](const TensorParallel& group) {
      nn::CausalLm model(tiny(true));
      const Training ours = on_this_rank(group, model, settings);
      EXPECT_NEAR(ours.losses[0], expected.losses[0], 2e-3 * expected.losses[0]);
      const auto parameters = model.parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_EQ(ours.initial[i], boxes_of(*parameters[i], expected.initial[i]));
        EXPECT_LT(distance(ours.gradients[i], boxes_of(*parameters[i], expected.gradients[i])),
                  6e-2)  // 2.8e-2 was seen where bf16 computes in f32
            << parameters[i]->name();
      }
    });
  }
}

// Each rank compares the logits of every position.
TEST(TensorParallelGpt2Once, LogitsAreTheWholes) {
  for (const Layout& layout : layouts({3})) {
    Rig rig;
    nn::CausalLm whole(tiny(true));
    whole.materialize(rig.context, DType::f32);
    const Data data = make_data(rig, layout);
    const std::vector<float> expected = nn::floats(whole.logits(rig.context, data.ids));
    on_group(layout, [&](const TensorParallel& group) {
      Rig own;
      nn::CausalLm model(tiny(true));
      apply_tensor_parallelism(model, group);
      model.materialize(own.context, DType::f32);
      const bool batch = group.split == ActivationSplit::batch;
      const ForwardCoordinates coordinates(own.context, group, data.positions);
      const Tensor logits =
          own.copy(model.logits(own.context, batch ? local_part(own, group, data.ids) : data.ids));
      const std::vector<float> ours = nn::floats(logits);
      const auto begin =
          expected.begin() + (batch ? static_cast<std::ptrdiff_t>(ours.size()) * group.rank() : 0);
      ASSERT_LE(ours.size(), expected.size());
      EXPECT_LT(distance(ours, {begin, begin + static_cast<std::ptrdiff_t>(ours.size())}), 1e-5);
      if (group.split == ActivationSplit::none) return;
      nn::DecoderCache cache(2);
      EXPECT_THAT(nn::error_of([&] { model.decode(own.context, data.ids, cache); }),
                  ::testing::HasSubstr("a key-value cache, and activations split by"));
    });
  }
}

}  // namespace
}  // namespace shoal::parallel
