// All ranks agree on the gradients' norm and on whether to skip a step, for every layout and
// whichever rank has the bad value.
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>

#include "rig.h"
#include "support/one_core.h"

namespace shoal::parallel {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void write_first(const Tensor& tensor, float number) {
  std::vector<float> values = testing::values_of<float>(tensor);
  values[0] = number;
  testing::set_values(tensor, values);
}

// Writes a value into the first weight gradient that backward writes.
class Planter final : public nn::Dispatcher {
 public:
  void run(const nn::Operation& operation, const std::function<void()>& body) override {
    body();
    if (!number_ || operation.name != "linear.backward_weight") return;
    write_first(operation.outputs[0], *number_);
    number_.reset();
  }
  void plant(float number) { number_ = number; }
  bool planted() const { return !number_; }

 private:
  std::optional<float> number_;
};

// The fault of a step: none, in one rank's gradients before ranks sum them, or in one rank's sum,
// as with faulty memory.
enum class Fault : std::uint8_t { none, before, after };
struct Step {
  Fault fault = Fault::none;
  int rank = 0;
  float number = 0;
};

// The faulty ranks are the first, one in between and the last: they differ in stage, part or
// replica.
std::vector<Step> steps_of(int ranks) {
  std::vector<Step> steps{{}};
  for (const int rank : {0, ranks / 2, ranks - 1}) {
    steps.push_back({Fault::before, rank, rank == 0 ? kNaN : kInf});
    steps.push_back({Fault::after, rank, rank == 0 ? -kInf : kNaN});
  }
  steps.emplace_back();
  return steps;
}

struct Said {
  nn::StepOutcome outcome;
  std::uint32_t done = 0;  // updates
  double loss_scale = 0;
};

// Indexed by step, then rank.
std::vector<std::vector<Said>> said(const Layout& layout) {
  const test::OneCore one_core;
  const std::vector<Step> steps = steps_of(layout.ranks());
  std::vector<std::vector<Said>> all(steps.size(),
                                     std::vector<Said>(static_cast<std::size_t>(layout.ranks())));
  test::run_thread_ranks(layout.ranks(), [&](const World& world, Store& store) {
    const auto group = testing::make_test_communicator(world, store);
    ProcessMesh mesh(*group, {layout.rdp, layout.pp, layout.tp}, Placement(layout.placement));
    Rank rank;
    Planter planter;
    nn::Context context(*rank.kernels, rank.memory, planter);
    context.random.state = &rank.state;
    nn::CausalLm gpt2(tiny());
    ParallelModel model(context, gpt2, mesh, options_of(layout));
    DistributedOptimizer optimizer(
        model, nn::adamw(),
        {.dynamic_loss_scale = true, .dynamic_loss_args = {.init_scale = 1024}});
    const int rows = kRows / layout.rdp / layout.microbatches / model.batch_parts();
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const bool mine = steps[i].rank == world.rank;
      std::vector<Microbatch> microbatches;
      for (int m = 0; m < layout.microbatches; ++m) {
        const int first = ((mesh.place().rdp * layout.microbatches + m) * model.batch_parts() +
                           model.batch_part()) *
                          rows;
        microbatches.push_back(
            {{rank.rows(0, first, rows, false), rank.rows(0, first, rows, true), {}, {}},
             static_cast<std::uint32_t>(first)});
        microbatches.back().input.loss.loss_scale =
            static_cast<float>(optimizer.loss_scale() / 128);
      }
      if (mine && steps[i].fault == Fault::before) planter.plant(steps[i].number);
      model.train(microbatches);
      EXPECT_TRUE(planter.planted());
      if (mine && steps[i].fault == Fault::after) {
        const std::vector<OwnedRun> runs = model.owned();
        const auto run =
            std::ranges::find_if(runs, [](const OwnedRun& one) { return one.segment.in_norm; });
        ASSERT_NE(run, runs.end());
        write_first(run->segment.gradient, steps[i].number);
      }
      Said& here = all[i][static_cast<std::size_t>(world.rank)];
      here.outcome = optimizer.step(rank.state, {.learning_rate = 1e-3, .max_gradient_norm = 0.5});
      here.done = rank.state.step;
      here.loss_scale = optimizer.loss_scale();
    }
    model.wait_for_values();
    group->barrier()->wait();
  });
  return all;
}

class StepAgreement : public ::testing::TestWithParam<Layout> {};

TEST_P(StepAgreement, IsOfAllRanks) {
  const Layout& layout = GetParam();
  const std::vector<Step> steps = steps_of(layout.ranks());
  const auto all = said(layout);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const bool fault = steps[i].fault != Fault::none;
    const Said& first = all[i].front();
    EXPECT_EQ(std::isfinite(first.outcome.gradient_norm), !fault);
    for (std::size_t rank = 0; rank < all[i].size(); ++rank) {
      SCOPED_TRACE(fmt::format("step {}, {} on rank {}, rank {}", i,
                               steps[i].fault == Fault::before  ? "before the sum"
                               : steps[i].fault == Fault::after ? "after it"
                                                                : "none",
                               steps[i].rank, rank));
      const Said& other = all[i][rank];
      EXPECT_EQ(other.outcome.skipped, fault);
      EXPECT_EQ(other.done, first.done);
      EXPECT_EQ(other.loss_scale, first.loss_scale);
      if (fault) continue;
      EXPECT_EQ(other.outcome.gradient_norm, first.outcome.gradient_norm);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, StepAgreement,
    ::testing::Values(Layout{.rdp = 3}, Layout{.rdp = 2, .pp = 2, .microbatches = 2},
                      Layout{.rdp = 2, .tp = 2, .prescaled = true, .speed = true},
                      Layout{.rdp = 2, .pp = 2, .tp = 2, .microbatches = 2},
                      Layout{.rdp = 2, .pp = 2, .tp = 2, .prescaled = true, .sharding = 1},
                      Layout{.rdp = 4, .sharding = 2, .degree = 2},
                      Layout{.rdp = 4, .sharding = 3, .degree = 2},
                      Layout{.rdp = 2, .sharding = 1, .degree = 1},
                      Layout{.rdp = 4, .tp = 2, .sharding = 3, .degree = 2}),
    [](const auto& test) { return test.param.text(); });

}  // namespace
}  // namespace shoal::parallel
