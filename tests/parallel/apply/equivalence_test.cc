// Layouts of GPT-2, BERT, Llama, Qwen3, GPT-NeoX, Gemma 1 to 3, T5 and BART compared with one rank:
// losses of each step, and gradients. By default, layouts of small meshes run a few steps; any two
// options occur together (layouts.h). With SHOAL_TEST_FULL, layouts of all meshes run 20 steps; any
// three options occur together. SHOAL_TEST_LAYOUTS selects from all layouts: "all", or those whose
// names contain its value.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <tuple>

#include "layouts.h"

namespace shoal::parallel {
namespace {

using ::testing::IsEmpty;

std::string environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

// A wrong gradient shows in the first step and a wrong update in the second. Later steps repeat
// them.
constexpr int kFewSteps = 4;

bool is_full() { return !environment("SHOAL_TEST_FULL").empty(); }

std::vector<Layout> chosen_layouts() {
  const std::string part = environment("SHOAL_TEST_LAYOUTS");
  const bool full = is_full();
  const LayoutSpace space = every_layout(part.empty() && !full);
  if (part.empty()) return covering_layouts(space, full ? 3 : 2);
  std::vector<Layout> layouts;
  for (const Layout& layout : space.legal)
    if (part == "all" || layout.text().find(part) != std::string::npos) layouts.push_back(layout);
  return layouts;
}

// The largest differences, and where they occurred.
struct Worst {
  double loss = 0, gradient = 0;
  std::string loss_of = "none", gradient_of = "none";
  void see(const Difference& found, const Layout& layout) {
    if (found.loss > loss) loss = found.loss, loss_of = layout.text();
    if (found.gradient > gradient) gradient = found.gradient, gradient_of = layout.text();
  }
};

// The tolerance for norms. Rounding errors grow from step to step, in a few models (BERT with seven
// heads) a thousandfold in 20 steps. For these the tolerance is ten times the distance to one rank
// whose initial weights differ in the last bit, because layouts round differently in every step.
double norm_mark(const Layout& layout, const Trained& want, int steps, double norm) {
  constexpr double kMark = 2e-4, kMost = 5e-3;
  if (norm < kMark) return kMark;
  const Trained disturbed =
      trained({.task = layout.task, .dtype = layout.dtype, .disturbed = true}, 0, steps);
  return std::clamp(10 * difference(disturbed, want).norm, kMark, kMost);
}

Difference expect_as_one_rank(const Layout& layout, int steps) {
  EXPECT_THAT(find_problems(plan_of(layout), run_of(layout), model_of(layout.task)), IsEmpty());
  const Trained &want = one_rank(layout.dtype, layout.task, steps), got = trained(layout, 0, steps);
  EXPECT_LT(want.losses.back(), want.losses.front() - 0.015 * steps) << "it learns";
  const Difference found = difference(got, want);
  EXPECT_LT(found.loss, 2e-5);
  EXPECT_LT(found.norm, norm_mark(layout, want, steps, found.norm));
  EXPECT_LT(found.gradient, 1e-5);
  EXPECT_NEAR(got.evaluated, want.evaluated, 2e-5 * want.evaluated);
  expect_one_writer(got.first, want.first);
  expect_one_writer(got.state, want.state);
  return found;
}

// The tests are split into pieces: ctest and GTEST_TOTAL_SHARDS run one process for each.
constexpr std::size_t kPieces = 12;
class Layouts : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Layouts, TrainAsOneRankDoes) {
  const std::vector<Layout> layouts = chosen_layouts();
  const bool few = !is_full() && environment("SHOAL_TEST_LAYOUTS").empty();
  const int steps = few ? kFewSteps : kSteps;
  Worst worst;
  int count = 0;
  const bool many = layouts.size() > 200;  // takes minutes, so report progress
  for (std::size_t i = GetParam(); i < layouts.size(); i += kPieces) {
    SCOPED_TRACE(layouts[i].text());
    if (many) std::fprintf(stderr, "%zu %s\n", i, layouts[i].text().c_str());
    try {
      worst.see(expect_as_one_rank(layouts[i], steps), layouts[i]);
      ++count;
    } catch (const std::exception& problem) {
      ADD_FAILURE() << problem.what();
    }
  }
  std::printf("%d of %zu layouts: losses within %.1e (%s), first gradients within %.1e (%s)\n",
              count, layouts.size(), worst.loss, worst.loss_of.c_str(), worst.gradient,
              worst.gradient_of.c_str());
}

INSTANTIATE_TEST_SUITE_P(Piece, Layouts, ::testing::Range<std::size_t>(0, kPieces));

// GPT-NeoX is not drawn: one layout for each way to divide its layers.
class NeoxLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(NeoxLayouts, TrainAsOneRankDoes) { expect_as_one_rank(GetParam(), kFewSteps); }

constexpr Task kLlama{.model = Model::llama}, kNeox{.model = Model::gpt_neox};
INSTANTIATE_TEST_SUITE_P(
    Few, NeoxLayouts,
    ::testing::Values(
        Layout{.task = kNeox, .tp = 4, .microbatches = 2, .prescaled = true},
        Layout{.task = kNeox, .pp = 2, .tp = 2, .microbatches = 4, .checkpoint_group = 1},
        Layout{.task = kNeox, .rdp = 2, .tp = 2, .prescaled = true, .speed = true, .sharding = 3}),
    [](const auto& test) { return test.param.text(); });

// Pipelines cut an encoder-decoder within the encoder, on both sides of the border, and within the
// decoder: with eight ranks, before and after each unit.
class EncoderDecoderLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(EncoderDecoderLayouts, TrainAsOneRankDoes) { expect_as_one_rank(GetParam(), kFewSteps); }

std::vector<Layout> encoder_decoder_layouts() {
  std::vector<Layout> all;
  for (const Model model : {Model::t5, Model::bart})
    for (Layout layout :
         {Layout{.pp = 2, .microbatches = 2}, Layout{.pp = 4, .microbatches = 4},
          Layout{.pp = 8, .microbatches = 8},
          Layout{.pp = 2, .schedule = ScheduleKind::zero_bubble_v, .chunks = 2, .microbatches = 4},
          Layout{.rdp = 2, .checkpoint_group = 1}, Layout{.checkpoint_group = 3, .offload = true},
          Layout{.tp = 2}, Layout{.tp = 4, .microbatches = 2, .prescaled = true},
          Layout{.rdp = 2, .tp = 2, .prescaled = true, .speed = true, .sharding = 2},
          Layout{.pp = 2, .tp = 2, .microbatches = 4, .checkpoint_group = 1},
          Layout{.pp = 2, .tp = 2, .microbatches = 2, .prescaled = true},
          Layout{.rdp = 2, .pp = 2, .microbatches = 2, .checkpoint_group = 2, .sharding = 3}}) {
      layout.task = {.model = model};
      all.push_back(layout);
    }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Few, EncoderDecoderLayouts, ::testing::ValuesIn(encoder_decoder_layouts()),
                         [](const auto& test) { return test.param.text(); });

// Adapters in every linear layer, one layout for each way to divide their factors.
class LoraLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(LoraLayouts, TrainAsOneRankDoes) { expect_as_one_rank(GetParam(), kFewSteps); }

// By default, GPT-2 has all layouts and each other model every second one, the first or the second
// onwards in turn. With SHOAL_TEST_FULL, each model has all.
std::vector<Layout> lora_layouts() {
  const Layout each[] = {
      {.rdp = 2, .microbatches = 2},
      {.pp = 4, .microbatches = 4},
      {.pp = 2, .schedule = ScheduleKind::zero_bubble_v, .chunks = 2, .microbatches = 4},
      {.tp = 2},
      {.tp = 4, .microbatches = 2, .prescaled = true},
      {.rdp = 2, .tp = 2, .prescaled = true, .speed = true, .sharding = 2},
      {.pp = 2, .tp = 2, .microbatches = 4, .checkpoint_group = 1},
      {.rdp = 4, .checkpoint_group = 2, .offload = true, .sharding = 3},
      {.rdp = 2, .tp = 2, .microbatches = 2, .sharding = 1}};
  std::vector<Layout> all;
  std::size_t first = 0;
  for (const Model model : {Model::gpt2, Model::bert, Model::llama, Model::t5, Model::qwen3,
                            Model::bart, Model::gemma2}) {
    const bool every = model == Model::gpt2 || is_full();
    for (std::size_t i = every ? 0 : first; i < std::size(each); i += every ? 1 : 2) {
      all.push_back(each[i]);
      all.back().task = {.model = model, .lora = true};
    }
    first = 1 - first;
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Few, LoraLayouts, ::testing::ValuesIn(lora_layouts()),
                         [](const auto& test) { return test.param.text(); });

// Rows hold several texts, which must stay separate wherever a batch or a layer is divided.
class PackedLayouts : public ::testing::TestWithParam<Layout> {};

TEST_P(PackedLayouts, TrainAsOneRankDoes) {
  const Layout& layout = GetParam();
  expect_as_one_rank(layout, kFewSteps);
  Task apart = layout.task;
  apart.packed = false;
  EXPECT_GT(difference(one_rank(DType::f32, layout.task, kFewSteps),
                       one_rank(DType::f32, apart, kFewSteps))
                .gradient,
            1e-2)
      << "packing changes nothing";
}

constexpr Task kPacked{.packed = true}, kPackedLlama{.model = Model::llama, .packed = true},
    kPackedQwen3{.model = Model::qwen3, .packed = true};
INSTANTIATE_TEST_SUITE_P(
    Few, PackedLayouts,
    ::testing::Values(
        Layout{.task = kPacked, .rdp = 2, .tp = 2, .prescaled = true, .speed = true},
        Layout{.task = kPacked, .tp = 4, .microbatches = 2, .prescaled = true},
        Layout{.task = kPacked, .pp = 2, .tp = 2, .microbatches = 4, .checkpoint_group = 1},
        Layout{.task = kPacked,
               .rdp = 2,
               .pp = 2,
               .microbatches = 2,
               .checkpoint_group = 2,
               .offload = true,
               .sharding = 2},
        Layout{.task = kPackedLlama, .tp = 2, .microbatches = 2},
        Layout{.task = kPackedLlama, .tp = 2, .prescaled = true},
        Layout{.task = kPackedLlama, .pp = 4, .microbatches = 4},
        Layout{.task = kPackedQwen3, .tp = 2, .microbatches = 2},
        Layout{.task = kPackedLlama, .rdp = 4, .checkpoint_group = 1, .sharding = 3}),
    [](const auto& test) { return test.param.text(); });

// The first layer gathers inputs that all layers need from divided batches: where texts begin and,
// for rotary layers, positions.
TEST(PackedLayout, GathersOnceForAllLayersOfAMicrobatch) {
  constexpr int kTwoSteps = 2;
  for (Layout layout : {Layout{.task = kPacked, .tp = 2, .microbatches = 2},
                        Layout{.task = kPacked, .tp = 2, .checkpoint_group = 1},
                        Layout{.task = kPackedLlama, .pp = 2, .tp = 2, .microbatches = 4}}) {
    const std::int64_t packed = trained(layout, 0, kTwoSteps).tp_operations;
    SCOPED_TRACE(layout.text());
    const std::int64_t gathers = layout.task.model == Model::llama ? 2 : 1;
    layout.task.packed = false;
    const std::int64_t apart = trained(layout, 0, kTwoSteps).tp_operations;
    EXPECT_GT(apart, 0);
    // An evaluation runs as many microbatches as a step.
    EXPECT_EQ(packed - apart, gathers * layout.microbatches * (kTwoSteps + 1));
  }
}

TEST(LlamaLayout, MoreRanksThanKeyHeadsAreRefused) {
  const Layout layout{.task = kLlama, .tp = 8, .prescaled = true};
  const auto problems = find_problems(plan_of(layout), run_of(layout), model_of(layout.task));
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_THAT(problems[0].what, ::testing::HasSubstr("4 attention heads"));
  EXPECT_EQ(layout_model(*make_model(layout.task)).heads, 4);
}

// The selected layouts cover what they should, as computed by another algorithm.
TEST(LayoutSpace, IsCovered) {
  using Names = std::array<std::string, 10>;
  const auto names_of = [](const Layout& l) {
    return Names{fmt::format("rdp {}", l.rdp),
                 fmt::format("pp {}", l.pp),
                 fmt::format("tp {}", l.tp),
                 fmt::format("schedule {}", name(l.schedule)),
                 fmt::format("microbatches {}", l.microbatches),
                 fmt::format("held {} {}", l.prescaled, l.speed),
                 fmt::format("sharding {} {}", l.sharding, l.degree > 0),
                 fmt::format("checkpoints {} {}", l.checkpoint_group, l.offload),
                 "placement " + l.placement,
                 fmt::format("model {}", static_cast<int>(l.task.model))};
  };
  const LayoutSpace space = every_layout(true);
  std::set<std::string> chosen;
  const std::vector<Layout> layouts = covering_layouts(space, 2);
  for (const Layout& layout : layouts)
    for (const Names names = names_of(layout); const std::string& one : names)
      for (const std::string& other : names) chosen.insert(one + ", " + other);
  // Only a sample of the legal layouts, because all would take seconds.
  for (std::size_t i = 0; i < space.legal.size(); i += 7)
    for (const Names names = names_of(space.legal[i]); const std::string& one : names)
      for (const std::string& other : names)
        ASSERT_TRUE(chosen.contains(one + ", " + other)) << one << ", " << other;
  std::set<std::tuple<int, int, int>> meshes;
  const LayoutSpace every = every_layout();
  for (const Layout& l : every.legal) meshes.insert({l.rdp, l.pp, l.tp});
  EXPECT_EQ(meshes.size(), 38U) << "every product of three degrees that is at most 8";
  std::printf("%zu layouts are legal; any two options of small meshes meet in %zu\n",
              every.legal.size(), layouts.size());
  for (const auto& [what, times] : every.refused) std::printf("%5d x %s\n", times, what.c_str());
}

}  // namespace
}  // namespace shoal::parallel
