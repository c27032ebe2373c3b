// Steps of meshes that are captured, or whose capture fails. They run on the host, whose kernels
// compute during a capture. As on a device, collectives do not run then.
#include <optional>

#include "rig.h"
#include "support/idle_communicator.h"
#include "support/noting_backend.h"
#include "support/one_core.h"

#include "shoal/nn/capture/step_capture.h"
#include "shoal/parallel/replay/replayed_communicator.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kPlaces = 12;  // where a capture fails in a step
constexpr Task kSmall{.rows = 4, .length = 6, .heads = 2};

// Ends a capture before one of the step's operations.
class Breaker final : public nn::Dispatcher {
 public:
  void run(const nn::Operation&, const std::function<void()>& body) override {
    ++seen;
    if (is_capturing() && seen > breaks_at)
      throw_error(ErrorCode::internal, "the test's own failure");
    body();
  }
  int seen = 0, breaks_at = 0;
};

struct Steps {
  std::vector<double> losses, norms;  // of each rank and step, sorted
  Whole state;
};

// A rank that trains its model in planned memory.
class PlannedRank {
 public:
  PlannedRank(const Layout& layout, collectives::Communicator& all, bool captured)
      : layout_(layout),
        all_(all),
        mesh_(captured ? all_ : all, {layout.rdp, layout.pp, layout.tp},
              Placement(layout.placement)) {
    context_.random.state = &rank_.state;
    ParallelOptions options = options_of(layout);
    model_.emplace(context_, *chain_, mesh_, options);
    optimizer_.emplace(*model_, nn::adamw());
    if (model_->adds_losses())
      losses_ = context_.empty({layout.microbatches}, DType::f32, MemoryTag::data);
  }

  // Two calls for each `part`: one records the step, the other captures it and fails after
  // part/places of its operations.
  void capture(int step, int part, int places) {
    if (!capture_)
      capture_.emplace(
          *kernels_, planned_,
          nn::StepCaptureOptions{.warmup = 1,
                                 .say = [this](const std::string& line) { said.push_back(line); },
                                 .backend = &backend_,
                                 .beside = all_.memories()});
    breaker_.breaks_at = operations_ * part / places;
    run(step, [&](const auto& body) { capture_->run(fmt::format("{}", part), body); });
  }
  void call_by_call(int step) {
    run(step, [](const auto& body) { body(); });
  }
  // The allocations and releases of such a step in order, for each memory: "+0 +1 -0 ... | +0 ...".
  std::string record(int step) {
    const RepeatableStep repeatable;
    std::vector<nn::PlannedMemory*> memories = all_.memories();
    memories.push_back(&planned_);
    for (nn::PlannedMemory* memory : memories) memory->begin_recording();
    call_by_call(step);
    std::string text;
    for (nn::PlannedMemory* memory : memories) {
      for (const auto& call : memory->end_recording().calls)
        text += fmt::format("{}{} ", call.bytes > 0 ? '+' : '-', call.block);
      text += "| ";
    }
    return text;
  }
  void collect_into(Steps& steps) {
    model_->wait_for_values();
    for (const auto& [from, to] :
         {std::pair{&mine_.losses, &steps.losses}, std::pair{&mine_.norms, &steps.norms}}) {
      to->insert(to->end(), from->begin(), from->end());
      std::ranges::sort(*to);
    }
    for (const StateRun& run : optimizer_->state_runs())
      if (run.writes) collect(run, steps.state);
  }
  std::vector<std::string> said;

 private:
  std::vector<Microbatch> microbatches(int step) {
    const int count = layout_.microbatches, parts = model_->batch_parts();
    const int rows = layout_.task.rows / layout_.rdp / count / parts, length = layout_.task.length;
    std::vector<Microbatch> all;
    for (int m = 0; m < count; ++m) {
      const int first = ((mesh_.place().rdp * count + m) * parts + model_->batch_part()) * rows;
      all.push_back({{rank_.rows(step, first, rows, false, length),
                      rank_.rows(step, first, rows, true, length),
                      {},
                      {.loss_scale = 1.0F / 16}},
                     static_cast<std::uint32_t>(first)});
    }
    return all;
  }
  template <class Run>
  void run(int step, const Run& run) {
    const std::vector<Microbatch> input = microbatches(step);
    const nn::StepOptions update{.learning_rate = 3e-3, .max_gradient_norm = 0.5};
    optimizer_->set_step(rank_.state, update);
    run([&] {
      if (std::exchange(open_, true)) model_->abandon_step();
      breaker_.seen = 0;
      model_->queue_train(input, losses_);
      operations_ = breaker_.seen;
      optimizer_->queue_step(rank_.state, update);
      open_ = false;
    });
    if (losses_.defined())
      for (const float loss : testing::values_of<float>(losses_))
        mine_.losses.push_back(static_cast<double>(loss));
    mine_.norms.push_back(context_.read(optimizer_->rule().norm()));
  }

  const Layout layout_;
  ReplayedCommunicator all_;
  ProcessMesh mesh_;
  std::unique_ptr<MemoryResource> source_ = make_host_memory();
  PoolMemory pool_{*source_};
  nn::PlannedMemory planned_{pool_, *source_};
  std::unique_ptr<kernels::Kernels> kernels_ =
      kernels::make_cpu_kernels({.threads = 1, .memory = &planned_});
  Breaker breaker_;
  nn::Context context_{*kernels_, planned_, breaker_};
  Rank rank_;  // makes inputs
  std::unique_ptr<nn::Chain> chain_ = make_model(layout_.task);
  std::optional<ParallelModel> model_;
  std::optional<DistributedOptimizer> optimizer_;
  Tensor losses_;
  test::NotingBackend backend_;
  std::optional<nn::StepCapture> capture_;
  Steps mine_;
  int operations_ = 0;  // in a step's forwards and backwards
  bool open_ = false;
};

Steps steps_of(const Layout& layout, bool captured) {
  const test::OneCore one_core;
  Steps steps;
  std::mutex mutex;
  test::run_thread_ranks(layout.ranks(), [&](const World& world, Store& store) {
    const auto group = testing::make_test_communicator(world, store);
    PlannedRank rank(layout, *group, captured);
    rank.call_by_call(0);
    for (int i = 0; i < 2 * kPlaces; ++i)
      if (captured)
        // Each rank fails at another point. Rank 0 fails first before its first operation, and at
        // last after its last one.
        rank.capture(i + 1, i / 2, kPlaces - 1 + world.rank);
      else
        rank.call_by_call(i + 1);
    if (captured) {
      EXPECT_THAT(rank.said, SizeIs(kPlaces));
      EXPECT_THAT(rank.said, Each(AnyOf(HasSubstr("call by call: the test's own failure"),
                                        HasSubstr("hosts exchange values in the middle"))));
    }
    {
      const std::scoped_lock lock(mutex);
      rank.collect_into(steps);
    }
    group->barrier()->wait();
  });
  return steps;
}

// Wherever a capture fails, this step and the later ones run call by call, with the same bits
// as without capture.
class AbandonedCapture : public ::testing::TestWithParam<Layout> {};

TEST_P(AbandonedCapture, LeavesNothingOfItsStep) {
  const Steps want = steps_of(GetParam(), false), got = steps_of(GetParam(), true);
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.norms, want.norms);
  EXPECT_EQ(got.state.values, want.state.values);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, AbandonedCapture,
    ::testing::Values(Layout{.task = kSmall, .rdp = 2},
                      Layout{.task = kSmall, .rdp = 2, .sharding = 1},
                      Layout{.task = kSmall, .rdp = 2, .sharding = 2},
                      Layout{.task = kSmall, .rdp = 2, .sharding = 3},
                      Layout{.task = kSmall, .rdp = 2, .checkpoint_group = 1, .sharding = 3},
                      Layout{.task = kSmall, .tp = 2, .prescaled = true},
                      Layout{.task = kSmall, .pp = 2, .microbatches = 2},
                      Layout{.task = kSmall, .rdp = 4, .sharding = 3, .degree = 2}),
    [](const auto& test) { return test.param.text(); });

// The order in which a step to be captured allocates and releases memory must not depend on timing:
// on whether a collective is already done when the step asks.
class CapturedOrder : public ::testing::TestWithParam<Layout> {};

TEST_P(CapturedOrder, DoesNotDependOnTiming) {
  const auto memory_of = [&](const std::function<bool()>& done) {
    const auto host = make_host_memory();
    test::IdleCommunicator all(1, 2, *host, done);
    PlannedRank rank(GetParam(), all, true);
    rank.call_by_call(0);
    return rank.record(1);
  };
  const std::string want = memory_of([] { return false; });
  EXPECT_EQ(memory_of([] { return true; }), want);
  EXPECT_EQ(memory_of([asked = 0]() mutable { return ++asked % 3 == 0; }), want);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, CapturedOrder,
    ::testing::Values(Layout{.task = kSmall, .rdp = 2},
                      Layout{.task = kSmall, .rdp = 2, .sharding = 1},
                      Layout{.task = kSmall, .rdp = 2, .microbatches = 2, .sharding = 2},
                      Layout{.task = kSmall, .rdp = 2, .microbatches = 2, .sharding = 3},
                      Layout{.task = kSmall, .tp = 2, .prescaled = true},
                      Layout{.task = kSmall, .pp = 2, .microbatches = 4}),
    [](const auto& test) { return test.param.text(); });

}  // namespace
}  // namespace shoal::parallel
