// The vocabulary-parallel embedding and head compared with the unsplit ones.
#include "shoal/parallel/tensor/vocabulary.h"

#include "parallel/tensor/parts.h"
#include <gmock/gmock.h>

namespace shoal::parallel {
namespace {

using nn::Value;
using ::testing::HasSubstr;

constexpr std::int64_t kChannels = 10, kSamples = 3, kPositions = 12;

std::vector<std::int32_t> tokens(std::int64_t count, std::int64_t vocabulary, std::uint32_t seed) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids.push_back(static_cast<std::int32_t>((seed >> 8) % static_cast<std::uint32_t>(vocabulary)));
  }
  return ids;
}

std::int64_t group_samples(const TensorParallel& group) {
  return group.split == ActivationSplit::batch ? kSamples * group.size() : kSamples;
}
// For ids and targets: every rank has all positions of its own samples.
Tensor own_samples(Rig& rig, const TensorParallel& group, const Tensor& whole) {
  return group.split == ActivationSplit::batch ? local_part(rig, group, whole) : whole;
}

// Allocates modules of one parameter, and gives the part the whole's values.
void give(Rig& rig, const nn::Module& whole, const nn::Module& cut, DType dtype) {
  nn::Parameter &from = *whole.parameters()[0], &to = *cut.parameters()[0];
  rig.give(from, 3, dtype);
  rig.give(to, 4, dtype);
  EXPECT_EQ(to.whole_shape(), from.shape());
  give_boxes(to, from);
}

class VocabularyParallel : public ::testing::TestWithParam<Layout> {};

TEST_P(VocabularyParallel, EmbeddingIsTheWholes) {
  on_group(GetParam(), [](const TensorParallel& as_made) {
    // Counts the host values that are copied to a device.
    const auto host = make_pinned_memory();
    CountingMemory pinned(*host);
    const TensorParallel group{as_made.tp, as_made.split, std::make_shared<HostToDevice>(&pinned)};
    for (const std::int64_t vocabulary : {3, 61}) {  // 3: four ranks have an empty shard
      Rig rig;
      nn::Embedding whole(vocabulary, kChannels, 1);
      VocabularyParallelEmbedding cut(group, vocabulary, kChannels, 1);
      give(rig, whole, cut, DType::f32);
      const std::int64_t samples = group_samples(group);
      const Tensor ids =
          rig.ids(tokens(samples * kPositions, vocabulary, 1), {samples, kPositions});
      const Tensor dy = rig.tensor({samples, kPositions, kChannels}, 2);
      const auto run = [&](nn::EmbeddingLike& layer, const Tensor& own, const Tensor& gradient) {
        nn::Tape tape;
        rig.context.tape = &tape;
        const Value y = layer.forward(rig.context, own);
        tape.backward(rig.context, y, gradient);
        rig.context.tape = nullptr;
        return y.tensor;
      };
      const Tensor expected = run(whole, ids, dy);
      const Tensor y = run(cut, own_samples(rig, group, ids), local_part(rig, group, dy));
      EXPECT_TRUE(nn::same_bits(y, local_part(rig, group, expected)));
      EXPECT_LT(distance(nn::floats(cut.weight()->gradient),
                         boxes_of(*cut.weight(), nn::floats(whole.weight()->gradient))),
                1e-6);
      EXPECT_EQ(pinned.usage(MemoryTag::data).current > 0, testing::on_cuda());
    }
  });
}

// The padding row gets no gradient, on whichever rank it is.
TEST_P(VocabularyParallel, EmbeddingLeavesThePaddingRowOut) {
  on_group(GetParam(), [](const TensorParallel& group) {
    constexpr std::int64_t kVocabulary = 12;
    for (const std::int64_t padding : {1, 10}) {
      Rig rig;
      VocabularyParallelEmbedding cut(group, kVocabulary, kChannels, 1, padding);
      rig.give(*cut.weight(), 4, DType::f32);
      const std::int64_t samples = group_samples(group);
      const Tensor ids =
          rig.ids(tokens(samples * kPositions, kVocabulary, 1), {samples, kPositions});
      const Tensor dy = rig.tensor({samples, kPositions, kChannels}, 2);
      nn::Tape tape;
      rig.context.tape = &tape;
      const Value y = cut.forward(rig.context, own_samples(rig, group, ids));
      tape.backward(rig.context, y, local_part(rig, group, dy));
      rig.context.tape = nullptr;
      const std::int64_t first = cut.weight()->pieces()[0].whole[0];
      const std::vector<float> gradient = nn::floats(cut.weight()->gradient);
      for (std::int64_t row = 0; row < cut.weight()->shape()[0]; ++row) {
        const auto at = gradient.begin() + row * kChannels;
        const bool zero = std::all_of(at, at + kChannels, [](float g) { return g == 0; });
        EXPECT_EQ(zero, first + row == padding) << first + row;
      }
    }
  });
}

struct HeadCase {
  std::int64_t vocabulary = 61, slice_rows = 0;
  int ignored_every = 0;
  DType dtype = DType::f32;
  float smoothing = 0.1f;
  bool tied = false;
  int forwards = 1;
  float soft_cap = 0;
};

void compare_heads(const TensorParallel& group, const HeadCase& test) {
  SCOPED_TRACE(fmt::format("vocabulary {}, slices of {}, ignored every {}, {}", test.vocabulary,
                           test.slice_rows, test.ignored_every, to_string(test.dtype)));
  Rig rig;
  nn::LmHeadConfig config{
      .vocabulary = test.vocabulary, .channels = kChannels, .std = 1, .soft_cap = test.soft_cap};
  nn::LmHead whole(config);
  VocabularyParallelEmbedding embedding(group, test.vocabulary, kChannels, 1);
  if (test.tied) config.tied = embedding.weight();
  auto cut = std::make_unique<VocabularyParallelHead>(group, config);
  cut->set_slice_rows(test.slice_rows);
  EXPECT_EQ(cut->weight() == embedding.weight(), test.tied);
  give(rig, whole, *cut, test.dtype);
  const std::int64_t samples = group_samples(group), rows = samples * kPositions;
  const Tensor x = rig.tensor({samples, kPositions, kChannels}, 7, test.dtype);
  std::vector<std::int32_t> target = tokens(rows, test.vocabulary, 5);
  for (std::size_t i = 0; test.ignored_every > 0 && i < target.size();
       i += static_cast<std::size_t>(test.ignored_every))
    target[i] = -100;
  const Tensor targets = rig.ids(target, {samples, kPositions});
  const nn::LossOptions options{.loss_scale = 8, .label_smoothing = test.smoothing};

  struct Run {
    double loss_sum;
    std::int64_t targets;
    Tensor dx;
  };
  const auto run = [&](nn::HeadLoss& head, const Tensor& hidden, const Tensor& own) {
    nn::Tape tape;
    rig.context.tape = &tape;
    const Value input = tape.leaf(hidden);
    const nn::LossOutput out = head.forward(rig.context, input, own, options);
    const double sum = rig.context.read(out.loss_sum);
    EXPECT_DOUBLE_EQ(rig.context.read(out.loss.tensor), 8 * sum);
    tape.backward(rig.context, out.loss);
    rig.context.tape = nullptr;
    // Without a tape the loss is the same, and no gradient changes.
    const std::vector<float> before = nn::floats(head.weight()->gradient);
    const nn::LossOutput again = head.forward(rig.context, Value{hidden}, own, options);
    EXPECT_EQ(rig.context.read(again.loss_sum), sum);
    EXPECT_EQ(nn::floats(head.weight()->gradient), before);
    return Run{sum, out.targets, tape.gradient(input)};
  };
  for (int forward = 0; forward < test.forwards; ++forward) {
    const Run expected = run(whole, x, targets);
    const Run ours = run(*cut, local_part(rig, group, x), own_samples(rig, group, targets));
    const double tolerance = test.dtype == DType::f32 ? 1e-5 : 1e-2;
    // On a device, an unsplit head keeps logits in 16 bits.
    const bool coarse = test.dtype != DType::f32 && testing::on_cuda();
    EXPECT_NEAR(ours.loss_sum, expected.loss_sum, (coarse ? 1e-4 : 1e-5) * expected.loss_sum);
    EXPECT_EQ(ours.targets, expected.targets);
    EXPECT_LE(distance(nn::floats(ours.dx), nn::floats(local_part(rig, group, expected.dx))),
              tolerance);
    EXPECT_LE(distance(nn::floats(cut->weight()->gradient),
                       boxes_of(*cut->weight(), nn::floats(whole.weight()->gradient))),
              tolerance);
  }
  const Tensor logits = cut->logits(rig.context, local_part(rig, group, x));
  EXPECT_LT(distance(nn::floats(rig.copy(logits)),
                     nn::floats(own_samples(rig, group, whole.logits(rig.context, x)))),
            test.dtype == DType::f32 ? 1e-6 : 1e-2);
}

TEST_P(VocabularyParallel, HeadIsTheWholes) {
  on_group(GetParam(), [](const TensorParallel& group) {
    compare_heads(group, {});
    compare_heads(group, {.slice_rows = 5, .smoothing = 0, .tied = true, .forwards = 2});
    compare_heads(group, {.vocabulary = 3, .slice_rows = 1, .ignored_every = 3});
    compare_heads(group, {.slice_rows = 1000, .ignored_every = 2, .forwards = 2});
    compare_heads(group, {.ignored_every = 1});
    compare_heads(group, {.slice_rows = 5, .ignored_every = 3, .soft_cap = 0.9f});
    compare_heads(group, {.vocabulary = 3, .smoothing = 0, .tied = true, .soft_cap = 4});
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, VocabularyParallel, ::testing::ValuesIn(layouts({1, 2, 3, 4})),
                         [](const auto& layout) { return name_of(layout.param); });

TEST(VocabularyParallelHead, InBf16) {
  for (const Layout& layout : layouts({2}))
    on_group(layout, [](const TensorParallel& group) {
      compare_heads(group, {.slice_rows = 7, .dtype = DType::bf16});
      compare_heads(group, {.ignored_every = 2, .dtype = DType::bf16});
      compare_heads(group, {.slice_rows = 7, .dtype = DType::bf16, .soft_cap = 2});
    });
}

TEST(VocabularyParallelHead, RowsAreSharedOutForEveryDegree) {
  for (int ranks = 1; ranks <= 17; ++ranks)
    for (const std::int64_t vocabulary : {0, 1, 16, 17, 50257}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const VocabularyRows rows = vocabulary_rows(vocabulary, rank, ranks);
        EXPECT_EQ(rows.first, next);
        EXPECT_LE(std::abs(rows.count - vocabulary / ranks), 1);
        next += rows.count;
      }
      EXPECT_EQ(next, vocabulary);
    }
}

TEST(VocabularyParallelHead, ErrorsNameTheProblem) {
  on_group({2, ActivationSplit::sequence}, [](const TensorParallel& group) {
    Rig rig;
    VocabularyParallelEmbedding embedding(group, 9, kChannels, 1);
    VocabularyParallelHead head(group, embedding.weight());
    rig.give(*embedding.weight(), 1);
    const Tensor x = rig.tensor({1, 2, kChannels}, 1);
    const auto loss = [&](const std::vector<std::int32_t>& targets) {
      return nn::error_of([&] {
        const auto count = static_cast<std::int64_t>(targets.size());
        head.forward(rig.context, Value{x}, rig.ids(targets, {1, count}), {});
      });
    };
    EXPECT_THAT(loss({1, 2, 9, 0}), HasSubstr("target 9 of row 2 is outside the vocabulary of 9"));
    EXPECT_THAT(loss({1, 2}), HasSubstr("targets of all positions"));
    const auto embed = [&](const std::vector<std::int32_t>& ids) {
      return nn::error_of([&] {
        embedding.forward(rig.context, rig.ids(ids, {1, static_cast<std::int64_t>(ids.size())}));
      });
    };
    EXPECT_THAT(embed({1, 9}), HasSubstr("id 9 at 1 is outside [0, 9)"));
    EXPECT_THAT(embed({1, 2, 3}),
                HasSubstr("3 positions do not divide over tensor_parallel_degree 2"));
  });
}

}  // namespace
}  // namespace shoal::parallel
