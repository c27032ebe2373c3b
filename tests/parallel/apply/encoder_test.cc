// Encoders on each form of parallelism against one rank: losses of three steps of AdamW, with
// dropout, padding and token types.
#include "rig.h"
#include "support/one_core.h"

#include "shoal/nn/models/encoder/model.h"
#include "shoal/parallel/tensor/replace.h"

namespace shoal::parallel {
namespace {

using nn::EncoderTask;

struct EncoderCase {
  const char* model_type;
  EncoderTask task;
  Layout layout;
  friend void PrintTo(const EncoderCase& test, std::ostream* out) {
    *out << test.model_type << ", " << to_string(test.task) << ", " << test.layout.text();
  }
};

nn::EncoderConfig tiny_encoder(const char* model_type) {
  nn::EncoderConfig config = nn::EncoderConfig::of(model_type);
  config.vocab_size = kVocabulary;
  config.hidden_size = 24;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 6;
  config.intermediate_size = 40;
  config.max_position_embeddings = 24;
  config.initializer_range = 0.2;
  config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.1;
  if (config.embedding_size > 0) config.embedding_size = 10;
  return config;
}

// Rows [first, first + rows) of a step's batch.
nn::ChainInput batch(Rank& rank, const nn::Encoder& model, int step, int first, int rows) {
  nn::ChainInput input;
  input.ids = rank.rows(step, first, rows, false);
  input.key_mask = Tensor::empty({rows, kLength}, DType::u8, rank.memory, MemoryTag::data);
  std::vector<std::int32_t> types, classes, answers;
  for (int row = 0; row < rows; ++row) {
    for (int t = 0; t < kLength; ++t) {
      input.key_mask.data<std::uint8_t>()[row * kLength + t] = t < 4 + (first + row) % 13 ? 1 : 0;
      types.push_back(t >= 5 ? 1 : 0);
    }
    classes.push_back((first + row) % 3 == 0 ? 1 : 0);
    answers.insert(answers.end(), {(first + row) % 3, 3 + (first + row) % 5});
  }
  if (model.config().type_vocab_size > 1) input.token_types = rank.ids({rows, kLength}, types);
  if (model.task() == EncoderTask::masked_lm)
    input.targets = rank.rows(step, first, rows, true);
  else if (model.task() == EncoderTask::question_answering)
    input.targets = rank.ids({rows, 2}, answers);
  else
    input.targets = rank.ids({rows}, classes);
  return input;
}

std::vector<double> losses_of(const EncoderCase& test) {
  const Layout& layout = test.layout;
  const test::OneCore one_core;
  std::vector<double> losses;
  test::run_thread_ranks(layout.ranks(), [&](const World& world, Store& store) {
    const auto group = collectives::make_communicator(world, store);
    ProcessMesh mesh(*group, {layout.rdp, layout.pp, layout.tp}, Placement(layout.placement));
    Rank rank;
    nn::Encoder encoder(tiny_encoder(test.model_type), test.task);
    ParallelModel model(rank.context, encoder, mesh, options_of(layout));
    DistributedOptimizer optimizer(model,
                                   [&](std::vector<nn::Segment> segments) {
                                     return nn::make_adamw(*rank.kernels, rank.memory,
                                                           std::move(segments), {});
                                   },
                                   {});
    const int rows = kRows / layout.rdp / layout.microbatches / model.batch_parts();
    for (int step = 0; step < 3; ++step) {
      std::vector<Microbatch> microbatches;
      std::int64_t targets = 0;
      for (int i = 0; i < layout.microbatches; ++i) {
        const int first = ((mesh.place().rdp * layout.microbatches + i) * model.batch_parts() +
                           model.batch_part()) *
                          rows;
        microbatches.push_back(
            {batch(rank, encoder, step, first, rows), static_cast<std::uint32_t>(first)});
        const Tensor& ids = microbatches.back().input.targets;
        targets += std::count_if(ids.const_data<std::int32_t>(),
                                 ids.const_data<std::int32_t>() + ids.count(),
                                 [](auto id) { return id >= 0; });
      }
      const auto global = static_cast<double>(model.sum_over_samples(targets));
      for (Microbatch& microbatch : microbatches)
        microbatch.input.loss.loss_scale = static_cast<float>(1 / global);
      const StageLoss loss = model.train(microbatches);
      EXPECT_EQ(static_cast<double>(loss.targets), global);
      optimizer.step(rank.state, {.learning_rate = 1e-2, .max_gradient_norm = 1});
      if (world.rank == 0) losses.push_back(loss.sum / global);
    }
    model.wait_for_values();
    group->barrier()->wait();
  });
  return losses;
}

class EncoderOnLayout : public ::testing::TestWithParam<EncoderCase> {};

TEST_P(EncoderOnLayout, TrainsAsOneRank) {
  const std::vector<double> expected =
      losses_of({GetParam().model_type, GetParam().task, Layout{}});
  const std::vector<double> ours = losses_of(GetParam());
  ASSERT_EQ(ours.size(), expected.size());
  for (std::size_t step = 0; step < ours.size(); ++step)
    EXPECT_NEAR(ours[step] / expected[step], 1, 2e-5) << "step " << step;
}

// A checkpoint of one layout is one of any other: parts have the whole model's names and shapes.
TEST(ParallelEncoder, PartsAreNamedAsTheWhole) {
  const auto shapes_of = [](const nn::Encoder& model) {
    std::map<std::string, std::string> shapes;
    for (const nn::Parameter* parameter : model.parameters())
      shapes[parameter->name()] = to_string(parameter->whole_shape());
    return shapes;
  };
  for (const char* model_type : {"bert", "roberta", "distilbert", "albert"})
    for (const bool tied : {true, false}) {
      nn::EncoderConfig config = tiny_encoder(model_type);
      config.tie_word_embeddings = tied;
      const auto whole = shapes_of(nn::Encoder(config, EncoderTask::masked_lm));
      test::run_thread_ranks(2, [&](const World& world, Store& store) {
        const auto group = collectives::make_communicator(world, store);
        nn::Encoder model(config, EncoderTask::masked_lm);
        apply_tensor_parallelism(model, {*group, ActivationSplit::sequence});
        EXPECT_EQ(shapes_of(model), whole);
        EXPECT_EQ(std::ranges::count_if(model.parameters(),
                                        [](const auto* one) { return one->is_part(); }) > 0,
                  true);
      });
    }
}

constexpr auto kLm = EncoderTask::masked_lm, kClasses = EncoderTask::sequence_classification,
               kAnswers = EncoderTask::question_answering;
INSTANTIATE_TEST_SUITE_P(
    Layouts, EncoderOnLayout,
    ::testing::Values(
        EncoderCase{"bert", kLm, {.pp = 2, .microbatches = 4}}, EncoderCase{"bert", kLm, {.tp = 2}},
        EncoderCase{"bert", kLm, {.tp = 2, .prescaled = true}},
        EncoderCase{"bert", kLm, {.tp = 2, .prescaled = true, .speed = true}},
        EncoderCase{"bert", kLm, {.rdp = 2, .checkpoint_group = 1, .sharding = 3}},
        EncoderCase{"bert", kClasses, {.rdp = 2, .pp = 2, .microbatches = 2}},
        EncoderCase{"roberta", kClasses, {.pp = 2, .tp = 2, .microbatches = 2}},
        EncoderCase{"distilbert", kClasses, {.tp = 2, .prescaled = true, .speed = true}},
        // Sequences are split, and the heads see whole ones.
        EncoderCase{"roberta", kClasses, {.tp = 2, .prescaled = true}},
        EncoderCase{"distilbert", kAnswers, {.rdp = 2, .tp = 2, .prescaled = true}},
        // Weights that units of several stages share, and dropout that must tell them apart.
        EncoderCase{"albert", kLm, {.pp = 2, .microbatches = 4, .checkpoint_group = 1}},
        EncoderCase{"albert", kLm, {.rdp = 2, .tp = 2, .sharding = 3}}));

}  // namespace
}  // namespace shoal::parallel
