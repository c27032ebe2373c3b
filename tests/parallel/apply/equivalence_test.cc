// Every layout of a model against one rank: the same losses, step after step, and gradients.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "nn/room.h"
#include "support/error_text.h"
#include "support/ranks.h"
#include <gmock/gmock.h>

#include "shoal/nn/models/gpt2/model.h"
#include "shoal/parallel/apply/legality.h"
#include "shoal/parallel/apply/parallel_model.h"

namespace shoal::parallel {
namespace {

constexpr int kRows = 16, kLength = 16, kSteps = 20, kVocabulary = 83;

nn::Gpt2Config tiny() {
  nn::Gpt2Config config;
  config.vocab_size = kVocabulary;
  config.n_positions = 24;
  config.n_embd = 32;
  config.n_layer = 6;  // with its ends: 8 units
  config.n_head = 8;
  return config;
}

struct Layout {
  int rdp = 1, pp = 1, tp = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int chunks = 1;
  int microbatches = 1;
  bool prescaled = false, speed = false;
  int checkpoint_group = 0;
  bool offload = false;
  std::string placement = "cluster";

  int ranks() const { return rdp * pp * tp; }
  friend void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.text(); }
  std::string text() const {
    std::string all = fmt::format("rdp{}_pp{}_tp{}_{}x{}_m{}_{}", rdp, pp, tp, name(schedule),
                                  chunks, microbatches, placement);
    if (tp > 1) all += prescaled ? (speed ? "_speed" : "_sequence") : "_batch";
    if (checkpoint_group > 0) all += fmt::format("_checkpoints{}", checkpoint_group);
    if (offload) all += "_offload";
    std::replace(all.begin(), all.end(), '-', '_');
    return all;
  }
};

using Gradients = std::map<std::string, std::vector<double>>;  // of whole tensors
struct Trained {
  std::vector<double> losses, norms;  // by step
  Gradients first;                    // gradients of the first step
};

struct Rank : nn::Room {
  Rank() { context.random.state = &state; }
  // Row `row` of the global batch of `step`: the same whoever asks.
  Tensor rows(int step, int first, int count, bool targets) {
    std::vector<std::int32_t> all;
    for (int row = first; row < first + count; ++row) {
      std::int32_t id = (step * 31 + row * 7) % kVocabulary;
      for (int t = 0; t <= kLength; ++t) {
        id = (id * 3 + 1) % kVocabulary;  // what follows can be learned
        // Rows have different numbers of targets, as padding makes them.
        if (t < kLength && !targets) all.push_back(id);
        if (t > 0 && targets) all.push_back(t > 3 + row % 13 ? -1 : id);
      }
    }
    return ids({count, kLength}, all);
  }
  kernels::StepState state;
};

// Into the whole tensor that the parameter is a part of.
void collect(const nn::Parameter& parameter, Gradients& into) {
  std::vector<double>& whole = into[parameter.name()];
  whole.resize(static_cast<std::size_t>(parameter.whole_shape().count()));
  const float* values = parameter.gradient.const_data<float>();
  const Shape inner = contiguous_strides(parameter.shape());
  const Shape outer = contiguous_strides(parameter.whole_shape());
  for (const nn::ParameterPiece& piece : parameter.pieces())
    for (std::int64_t i = 0; i < piece.sizes.count(); ++i) {
      std::int64_t rest = i, from = 0, to = 0;
      for (int dim = piece.sizes.rank(); dim-- > 0;) {
        const std::int64_t at = rest % piece.sizes[dim];
        rest /= piece.sizes[dim];
        from += (piece.local[dim] + at) * inner[dim];
        to += (piece.whole[dim] + at) * outer[dim];
      }
      whole[static_cast<std::size_t>(to)] = static_cast<double>(values[from]);
    }
}

Trained trained(const Layout& layout) {
  Trained result;
  std::mutex mutex;
  test::run_thread_ranks(layout.ranks(), [&](const World& world, Store& store) {
    const auto group = collectives::make_communicator(world, store);
    ProcessMesh mesh(*group, {layout.rdp, layout.pp, layout.tp}, Placement(layout.placement));
    Rank rank;
    nn::Gpt2 gpt2(tiny());
    ParallelModel model(rank.context, gpt2, mesh,
                        {.schedule = layout.schedule,
                         .microbatches = layout.microbatches,
                         .chunks = layout.chunks,
                         .prescaled_batch = layout.prescaled,
                         .speed = layout.speed,
                         .checkpoint_group = layout.checkpoint_group,
                         .offload_activations = layout.offload,
                         .offload = {.min_bytes = 1},
                         .partition = {}});
    std::vector<nn::Segment> segments;
    for (nn::Parameter* parameter : model.parameters())
      segments.push_back({.name = parameter->name(),
                          .master = parameter->value,
                          .gradient = parameter->gradient,
                          .decays = parameter->decays(),
                          .in_norm = model.counts_in_norm(*parameter)});
    const auto optimizer =
        nn::make_adamw(*rank.kernels, rank.memory, segments, {.weight_decay = 0.1});
    const int rows = kRows / layout.rdp / layout.microbatches / model.batch_parts();
    ASSERT_GT(rows, 0);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Microbatch> microbatches;
      std::int64_t targets = 0;
      for (int i = 0; i < layout.microbatches; ++i) {
        const int first = ((mesh.place().rdp * layout.microbatches + i) * model.batch_parts() +
                           model.batch_part()) *
                          rows;
        microbatches.push_back(
            {{rank.rows(step, first, rows, false), rank.rows(step, first, rows, true), {}, {}},
             static_cast<std::uint32_t>(first)});
        const auto* ids = microbatches.back().input.targets.const_data<std::int32_t>();
        targets += std::count_if(ids, ids + rows * kLength, [](auto id) { return id >= 0; });
      }
      const auto global = static_cast<double>(model.sum_over_samples(targets));
      for (Microbatch& microbatch : microbatches)
        microbatch.input.loss.loss_scale = static_cast<float>(1 / global);
      const StageLoss loss = model.train(microbatches);
      EXPECT_EQ(static_cast<double>(loss.targets), global);
      if (step == 0 && mesh.place().rdp == 0) {
        const std::scoped_lock lock(mutex);
        for (const nn::Parameter* parameter : model.parameters())
          if (model.counts_in_norm(*parameter)) collect(*parameter, result.first);
      }
      nn::StepOptions options{.learning_rate = 3e-3, .max_gradient_norm = 0.5};
      options.sum_over_shards = [&](double sum) { return model.sum_over_replica(sum); };
      const nn::StepOutcome outcome = optimizer->step(rank.state, options);
      if (world.rank == layout.ranks() - 1) {
        result.losses.push_back(loss.sum / global);
        result.norms.push_back(outcome.gradient_norm);
      }
    }
    group->barrier()->wait();
  });
  return result;
}

const Trained& one_rank() {
  static const Trained made = trained({});
  return made;
}

struct Difference {
  double loss = 0, norm = 0, gradient = 0;  // relative; the largest of all steps
};

Difference difference(const Trained& got, const Trained& want) {
  Difference found;
  for (std::size_t step = 0; step < want.losses.size(); ++step) {
    found.loss = std::max(found.loss, std::abs(got.losses[step] / want.losses[step] - 1));
    found.norm = std::max(found.norm, std::abs(got.norms[step] / want.norms[step] - 1));
  }
  double whole = 0, apart = 0;
  for (const auto& [parameter, values] : want.first) {
    EXPECT_TRUE(got.first.contains(parameter)) << parameter;
    if (!got.first.contains(parameter)) continue;
    for (std::size_t i = 0; i < values.size(); ++i) {
      whole += values[i] * values[i];
      const double off = got.first.at(parameter)[i] - values[i];
      apart += off * off;
    }
  }
  found.gradient = std::sqrt(apart / whole);
  return found;
}

class Layouts : public ::testing::TestWithParam<Layout> {};

TEST_P(Layouts, TrainAsOneRankDoes) {
  const Trained &want = one_rank(), got = trained(GetParam());
  ASSERT_EQ(got.losses.size(), want.losses.size());
  EXPECT_LT(want.losses.back(), want.losses.front() - 0.3) << "it learns";
  const Difference found = difference(got, want);
  EXPECT_LT(found.loss, 2e-5);
  EXPECT_LT(found.norm, 2e-4);
  EXPECT_LT(found.gradient, 1e-5);
  RecordProperty("loss_error", fmt::format("{:.2e}", found.loss));
  RecordProperty("gradient_error", fmt::format("{:.2e}", found.gradient));
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const auto kind : {ScheduleKind::simple, ScheduleKind::interleaved,
                          ScheduleKind::one_f_one_b, ScheduleKind::zero_bubble})
    for (const auto& [rdp, pp] : {std::pair{1, 2}, {2, 2}, {1, 4}, {2, 4}, {1, 8}})
      all.push_back({.rdp = rdp, .pp = pp, .schedule = kind, .microbatches = rdp == 2 ? 8 : 4});
  all.push_back({.rdp = 2});
  all.push_back({.rdp = 8});
  all.push_back({.rdp = 2, .microbatches = 4, .checkpoint_group = 1});
  all.push_back(
      {.pp = 2, .schedule = ScheduleKind::virtual_interleaved, .chunks = 4, .microbatches = 4});
  all.push_back(
      {.pp = 4, .schedule = ScheduleKind::virtual_interleaved, .chunks = 2, .microbatches = 8});
  all.push_back({.rdp = 2,
                 .pp = 4,
                 .schedule = ScheduleKind::zero_bubble_v,
                 .chunks = 2,
                 .microbatches = 4,
                 .checkpoint_group = 2,
                 .placement = "spread"});
  // Tensor parallelism: each way to hold activations, alone, with pipelines and with replicas.
  struct Held {
    bool prescaled, speed;
  };
  for (const Held held : {Held{true, true}, Held{true, false}, Held{false, false}})
    for (const auto& [rdp, pp, tp] :
         {std::tuple{1, 1, 2}, {1, 1, 4}, {1, 1, 8}, {2, 1, 2}, {1, 2, 2}, {2, 2, 2}, {1, 2, 4}})
      all.push_back({.rdp = rdp,
                     .pp = pp,
                     .tp = tp,
                     .schedule = tp == 4 ? ScheduleKind::zero_bubble : ScheduleKind::interleaved,
                     .microbatches = tp == 8 ? 2 : 4,
                     .prescaled = held.prescaled,
                     .speed = held.speed,
                     .checkpoint_group = rdp - 1,
                     .offload = rdp == 2 && pp == 2,
                     .placement = rdp == 2 ? "TDP" : "cluster"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, Layouts, ::testing::ValuesIn(layouts()),
                         [](const auto& test) { return test.param.text(); });

// Every mesh of up to 8 ranks with every schedule and way to hold activations that is legal;
// checkpoints and offloading in turn.
std::vector<Layout> every_legal_layout() {
  std::vector<Layout> all;
  const auto legal = [](const Layout& layout) {
    LayoutRequest request;
    request.ranks = layout.ranks();
    request.pipeline = layout.pp;
    request.tensor = layout.tp;
    request.schedule = layout.schedule;
    request.chunks = layout.chunks;
    request.microbatches = layout.microbatches;
    request.batch = kRows / layout.rdp;
    request.length = kLength;
    request.prescaled_batch = layout.prescaled;
    request.speed = layout.speed;
    request.checkpointing = layout.checkpoint_group > 0;
    request.offloading = layout.offload;
    const int rows = kRows / layout.rdp / layout.microbatches;
    return kRows % layout.rdp == 0 && rows > 0 && (layout.prescaled || rows % layout.tp == 0) &&
           find_problems(request, {8, tiny().n_head, tiny().inner()}).empty();
  };
  for (int rdp = 1; rdp <= 8; ++rdp)
    for (int pp = 1; rdp * pp <= 8; ++pp)
      for (int tp = 1; rdp * pp * tp <= 8; ++tp)
        for (const auto kind : {ScheduleKind::simple, ScheduleKind::interleaved,
                                ScheduleKind::one_f_one_b, ScheduleKind::virtual_interleaved,
                                ScheduleKind::zero_bubble, ScheduleKind::zero_bubble_v})
          for (const int microbatches : {2, 8})
            for (const int held : {0, 1, 2}) {
              const bool two =
                  kind == ScheduleKind::virtual_interleaved || kind == ScheduleKind::zero_bubble_v;
              // Nothing, each block's input, or that of two blocks, in the file: in turn.
              const int kept = static_cast<int>(all.size() % 3);
              const Layout layout{.rdp = rdp,
                                  .pp = pp,
                                  .tp = tp,
                                  .schedule = kind,
                                  .chunks = two ? 2 : 1,
                                  .microbatches = microbatches,
                                  .prescaled = held > 0,
                                  .speed = held == 1,
                                  .checkpoint_group = kept,
                                  .offload = kept == 2};
              if ((tp > 1 || held == 0) && legal(layout)) all.push_back(layout);
            }
  return all;
}

TEST(EveryLayout, TrainsAsOneRankDoes) {
  if (std::getenv("SHOAL_TEST_FULL") == nullptr)  // NOLINT(concurrency-mt-unsafe)
    GTEST_SKIP() << every_legal_layout().size() << " layouts: ./dev test --full";
  Difference worst;
  int layouts = 0;
  for (const Layout& layout : every_legal_layout()) {
    const Difference found = difference(trained(layout), one_rank());
    EXPECT_LT(found.loss, 2e-5) << layout.text();
    EXPECT_LT(found.norm, 2e-4) << layout.text();
    EXPECT_LT(found.gradient, 1e-5) << layout.text();
    worst.loss = std::max(worst.loss, found.loss);
    worst.gradient = std::max(worst.gradient, found.gradient);
    ++layouts;
  }
  std::printf("%d layouts: losses within %.1e, first gradients within %.1e\n", layouts, worst.loss,
              worst.gradient);
}

}  // namespace
}  // namespace shoal::parallel
