// The encoder families and their heads on several kinds of parallelism, compared with one rank:
// losses of three AdamW steps, with dropout, padding and token types. BERT's language model is
// among the layouts of equivalence_test.cc.
#include "rig.h"
#include "support/one_core.h"

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

nn::EncoderConfig small(const char* model_type) { return tiny_encoder(model_type, 6, 4); }

std::vector<double> losses_of(const EncoderCase& test) {
  const Layout& layout = test.layout;
  const test::OneCore one_core;
  std::vector<double> losses;
  test::run_thread_ranks(layout.ranks(), [&](const World& world, Store& store) {
    const auto group = testing::make_test_communicator(world, store);
    ProcessMesh mesh(*group, {layout.rdp, layout.pp, layout.tp}, Placement(layout.placement));
    Rank rank;
    nn::Encoder encoder(small(test.model_type), test.task);
    ParallelModel model(rank.context, encoder, mesh, options_of(layout));
    DistributedOptimizer optimizer(model, nn::adamw(), {});
    const int rows = kRows / layout.rdp / layout.microbatches / model.batch_parts();
    for (int step = 0; step < 3; ++step) {
      std::vector<Microbatch> microbatches;
      std::int64_t targets = 0;
      for (int i = 0; i < layout.microbatches; ++i) {
        const int first = ((mesh.place().rdp * layout.microbatches + i) * model.batch_parts() +
                           model.batch_part()) *
                          rows;
        microbatches.push_back({encoder_input(rank, encoder.config(), test.task, step, first, rows),
                                static_cast<std::uint32_t>(first)});
        const Tensor& ids = microbatches.back().input.targets;
        targets += std::count_if(ids.const_data<std::int32_t>(),
                                 ids.const_data<std::int32_t>() + ids.count(),
                                 [](auto id) { return id >= 0; });
      }
      const auto global = static_cast<double>(sum_over_samples(mesh, model, targets));
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

// A checkpoint of one layout can be read by any other: parts have the whole model's names and
// shapes.
TEST(ParallelEncoder, PartsAreNamedAsTheWhole) {
  const auto shapes_of = [](const nn::Encoder& model) {
    std::map<std::string, std::string> shapes;
    for (const nn::Parameter* parameter : model.parameters())
      shapes[parameter->name()] = to_string(parameter->whole_shape());
    return shapes;
  };
  for (const char* model_type : {"bert", "roberta", "distilbert", "albert", "modernbert"})
    for (const bool tied : {true, false}) {
      nn::EncoderConfig config = small(model_type);
      config.tie_word_embeddings = tied;
      const auto whole = shapes_of(nn::Encoder(config, EncoderTask::masked_lm));
      test::run_thread_ranks(2, [&](const World& world, Store& store) {
        const auto group = testing::make_test_communicator(world, store);
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
        EncoderCase{"bert", kClasses, {.rdp = 2, .pp = 2, .microbatches = 2}},
        EncoderCase{"roberta", kClasses, {.pp = 2, .tp = 2, .microbatches = 2}},
        EncoderCase{"distilbert", kClasses, {.tp = 2, .prescaled = true, .speed = true}},
        // Sequences are split; the heads receive whole ones.
        EncoderCase{"roberta", kClasses, {.tp = 2, .prescaled = true}},
        EncoderCase{"distilbert", kAnswers, {.rdp = 2, .tp = 2, .prescaled = true}},
        // Units of several stages share weights, and dropout must differ between them.
        EncoderCase{"albert", kLm, {.pp = 2, .microbatches = 4, .checkpoint_group = 1}},
        EncoderCase{"albert", kLm, {.rdp = 2, .tp = 2, .sharding = 3}},
        // Fused projections are divided part by part; the mean is of whole sequences.
        EncoderCase{"modernbert", kLm, {.pp = 2, .tp = 2, .microbatches = 2}},
        EncoderCase{"modernbert", kLm, {.rdp = 2, .tp = 2, .prescaled = true, .sharding = 3}},
        EncoderCase{"modernbert",
                    kClasses,
                    {.tp = 2, .microbatches = 2, .prescaled = true, .checkpoint_group = 1}},
        EncoderCase{"modernbert", kAnswers, {.rdp = 2, .tp = 2, .prescaled = true, .speed = true}},
        EncoderCase{"modernbert", kLm, {.rdp = 4, .offload = true, .sharding = 2}}));

}  // namespace
}  // namespace shoal::parallel
