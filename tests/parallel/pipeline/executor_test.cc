// Pipelines of a model compared with the same model on one rank.
#include "shoal/parallel/pipeline/executor.h"

#include <cmath>
#include <mutex>
#include <optional>

#include "nn/fixture.h"
#include "support/error_text.h"
#include "support/idle_communicator.h"
#include "support/rank_device.h"
#include "support/ranks.h"
#include <gmock/gmock.h>

#include "shoal/nn/capture/planned_memory.h"
#include "shoal/nn/layers/module.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/parallel/pipeline/chain_stage.h"
#include "shoal/parallel/pipeline/generate.h"
#include "shoal/parallel/tensor/host_to_device.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/captured_work.h"

namespace shoal::parallel {
namespace {

using nn::Parameter;
using ::testing::HasSubstr;

nn::DecoderConfig small() {
  nn::DecoderConfig config = nn::DecoderConfig::of("gpt2");
  config.vocab_size = 61;
  config.max_position_embeddings = 24;
  config.hidden_size = 24;
  config.num_hidden_layers = 7;  // nine units with its ends
  config.num_attention_heads = 3;
  return config;
}

// Summed over ranks in double precision, keyed by parameter name.
using Gradients = std::map<std::string, std::vector<double>>;
struct Result {
  double loss = 0;
  std::int64_t targets = 0;
  Gradients gradients;
};

constexpr int kMicrobatches = 6, kRows = 2, kLength = 11;

struct Model : nn::Fixture {
  explicit Model(DType dtype = DType::f32)
      : Fixture(false, 2, nn::FixtureMemory::job), gpt2(small()) {
    context.random.state = &state;
    gpt2.materialize(context, dtype);
    nn::allocate_gradients(context, gpt2.parameters());
    for (int i = 0; i < kMicrobatches; ++i) {
      const auto tokens = [&](std::uint32_t salt) {
        std::vector<std::int32_t> all(kRows * kLength);
        std::uint32_t random = salt * 977u + static_cast<std::uint32_t>(i);
        for (auto& id : all) {
          random = random * 1664525u + 1013904223u;
          id = static_cast<std::int32_t>(random >> 8) % 61;
        }
        return ids({kRows, kLength}, all);
      };
      microbatches.push_back({{tokens(1), tokens(2), {}, {.loss_scale = 0.25f}},
                              static_cast<std::uint32_t>(i * kRows)});
    }
  }
  void collect(Result& result) {
    for (Parameter* parameter : gpt2.parameters()) {
      EXPECT_EQ(parameter->uses(), 0) << parameter->name();
      auto& sum = result.gradients[parameter->name()];
      sum.resize(static_cast<std::size_t>(parameter->shape().count()));
      if (!parameter->has_gradient()) continue;
      const std::vector<float> values = testing::values_of<float>(parameter->gradient);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(values[i]);
    }
  }
  nn::CausalLm gpt2;
  const testing::Reachable<kernels::StepState> reachable_state{{.step = 3}};
  kernels::StepState& state = *reachable_state;
  std::vector<Microbatch> microbatches;
};

const Result& one_rank() {
  static const Result result = [] {
    Model model;
    Result made;
    for (const Microbatch& batch : model.microbatches) {
      model.context.random.sample_first = batch.sample_first;
      nn::Tape tape;
      model.context.tape = &tape;
      const nn::LossOutput out =
          model.gpt2.forward(model.context, batch.input.ids, batch.input.targets, batch.input.loss);
      model.context.tape = nullptr;
      tape.backward(model.context, out.loss);
      made.loss += model.context.read(out.loss_sum);
      made.targets += out.targets;
    }
    model.collect(made);
    return made;
  }();
  return result;
}

std::vector<UnitRange> even_cut(int units, int stages) {
  std::vector<UnitRange> cut;
  for (int stage = 0; stage < stages; ++stage)
    cut.push_back({units * stage / stages, units * (stage + 1) / stages});
  return cut;
}

// The stages of `schedule` on one rank.
struct Rank {
  Rank(Model& model, const Schedule& schedule, int rank, ChainStageOptions options = {}) {
    const auto cut = even_cut(model.gpt2.units(), schedule.stages());
    for (int s = 0; s < schedule.stages(); ++s)
      if (schedule.rank_of_stage[static_cast<std::size_t>(s)] == rank)
        stages.emplace(s, std::make_unique<ChainStage>(model.context, model.gpt2,
                                                       cut[static_cast<std::size_t>(s)], options));
    for (const auto& [number, stage] : stages) {
      table.emplace(number, stage.get());
      stage->begin(model.microbatches);
    }
  }
  std::map<int, std::unique_ptr<ChainStage>> stages;
  std::map<int, Stage*> table;
};

Result pipelined(const ScheduleOptions& options, ChainStageOptions stage_options) {
  const Schedule schedule = make_schedule(options);
  Result result;
  std::mutex mutex;
  test::run_thread_ranks(options.ranks, [&](const World& world, Store& store) {
    const auto pp = testing::make_test_communicator(world, store);
    Model model;
    Rank rank(model, schedule, world.rank, stage_options);
    PipelineExecutor executor(schedule, *pp, rank.table);
    int told = 0;
    executor.run([&] {
      ++told;
      // No later forward begins a use.
      for (const auto& [number, stage] : rank.stages)
        for (int unit = stage->units().first; unit < stage->units().last; ++unit)
          for (Parameter* parameter : model.gpt2.unit_parameters(unit)) parameter->arm();
    });
    EXPECT_EQ(told, 1);
    pp->barrier()->wait();
    const std::scoped_lock lock(mutex);
    model.collect(result);
    for (const auto& [number, stage] : rank.stages) {
      EXPECT_EQ(stage->microbatches_in_flight(), 0);
      result.loss += stage->loss().sum;
      result.targets += stage->loss().targets;
    }
    EXPECT_EQ(executor.statistics().messages > 0, options.ranks > 1);
  });
  return result;
}

void expect_same(const Result& got, const Result& want, const std::string& what) {
  EXPECT_NEAR(got.loss, want.loss, 2e-6 * want.loss) << what;
  EXPECT_EQ(got.targets, want.targets) << what;
  double whole = 0, apart = 0;
  for (const auto& [name, values] : want.gradients)
    for (std::size_t i = 0; i < values.size(); ++i) {
      whole += values[i] * values[i];
      const double difference = got.gradients.at(name)[i] - values[i];
      apart += difference * difference;
    }
  EXPECT_LT(std::sqrt(apart), 2e-6 * std::sqrt(whole)) << what;
}

struct Case {
  ScheduleKind kind;
  int ranks, chunks;
};
class Pipelines : public ::testing::TestWithParam<Case> {};

TEST_P(Pipelines, ComputeWhatOneRankComputes) {
  const Case c = GetParam();
  const ScheduleOptions options{
      .kind = c.kind, .ranks = c.ranks, .microbatches = kMicrobatches, .chunks = c.chunks};
  for (const int group : {0, 2})
    expect_same(pipelined(options, {.checkpoint_group = group}), one_rank(),
                fmt::format("{} on {} ranks, checkpoints of {}", name(c.kind), c.ranks, group));
}

INSTANTIATE_TEST_SUITE_P(
    Schedules, Pipelines,
    ::testing::Values(Case{ScheduleKind::simple, 1, 1}, Case{ScheduleKind::simple, 2, 1},
                      Case{ScheduleKind::simple, 4, 1}, Case{ScheduleKind::interleaved, 2, 1},
                      Case{ScheduleKind::interleaved, 3, 1}, Case{ScheduleKind::one_f_one_b, 2, 1},
                      Case{ScheduleKind::one_f_one_b, 4, 1},
                      Case{ScheduleKind::virtual_interleaved, 2, 2},
                      Case{ScheduleKind::virtual_interleaved, 3, 3},
                      Case{ScheduleKind::zero_bubble, 3, 1}, Case{ScheduleKind::zero_bubble, 4, 1},
                      Case{ScheduleKind::zero_bubble_v, 2, 2},
                      Case{ScheduleKind::zero_bubble_v, 4, 2}),
    [](const auto& test) {
      std::string text =
          fmt::format("{}_{}x{}", name(test.param.kind), test.param.ranks, test.param.chunks);
      std::replace(text.begin(), text.end(), '-', '_');
      return text;
    });

TEST(Pipeline, EvaluatesWithForwardsOnly) {
  ScheduleOptions options{
      .kind = ScheduleKind::one_f_one_b, .ranks = 2, .microbatches = kMicrobatches};
  options.forward_only = true;
  const Schedule schedule = make_schedule(options);
  Model plain;
  plain.context.mode = nn::Mode::evaluate;
  double want = 0;
  for (const Microbatch& batch : plain.microbatches)
    want += plain.context.read(
        plain.gpt2.forward(plain.context, batch.input.ids, batch.input.targets).loss_sum);
  test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto pp = testing::make_test_communicator(world, store);
    Model model;
    model.context.mode = nn::Mode::evaluate;
    Rank rank(model, schedule, world.rank);
    PipelineExecutor(schedule, *pp, rank.table).run();
    if (world.rank == 1) {
      EXPECT_NEAR(rank.stages.at(1)->loss().sum, want, 1e-6 * want);
    }
    EXPECT_EQ(rank.stages.begin()->second->microbatches_in_flight(), 0);
    pp->barrier()->wait();
  });
}

// Reads the targets in its unit, as a split head does.
struct ReadsTargets final : nn::UnitObserver {
  ReadsTargets(nn::Context& of, const Tensor& targets) : context(of), on_device(targets) {}
  void before_forward(int, int) override {
    seen.push_back(known_on_host(context, on_device));
    EXPECT_FALSE(known_on_host(context, on_device.narrowed(0, 0, 1)).defined()) << "other targets";
  }
  void after_forward(int) noexcept override {}
  void before_backward(int, int) override {}
  void after_backward(int) noexcept override {}
  nn::Context& context;
  Tensor on_device;
  std::vector<Tensor> seen;
};

TEST(Pipeline, LayersFindTheTargetsThatAMicrobatchHasOnTheHost) {
  Model model;
  Microbatch with = model.microbatches[0], without = with;
  with.host_targets = with.input.targets;
  // Stands for a copy on a device. No unit of the stage reads it.
  const Tensor on_device =
      Tensor::over(std::make_shared<Storage>(with.host_targets.view().data,
                                             with.host_targets.bytes(), Device::cuda(0), nullptr),
                   0, with.host_targets.shape(), DType::i32);
  with.input.targets = without.input.targets = on_device;
  ReadsTargets observer(model.context, on_device);
  ChainStage stage(model.context, model.gpt2, {0, 1}, {.observer = &observer});
  const Microbatch batches[] = {with, without};
  stage.begin(batches);
  stage.forward(0, {});
  EXPECT_FALSE(known_on_host(model.context, on_device).defined()) << "the forward pass has ended";
  stage.forward(1, {});
  ASSERT_EQ(observer.seen.size(), 2U);
  EXPECT_TRUE(same_memory(observer.seen[0], with.host_targets));
  EXPECT_FALSE(observer.seen[1].defined());
}

// With p stages, 1F1B keeps min(p - r, m) microbatches' activations on rank r.
TEST(Pipeline, KeepsNoMoreActivationsThanTheScheduleSays) {
  const Schedule schedule =
      make_schedule({.kind = ScheduleKind::one_f_one_b, .ranks = 3, .microbatches = kMicrobatches});
  const Simulation simulation = simulate(schedule);
  test::run_thread_ranks(3, [&](const World& world, Store& store) {
    const auto pp = testing::make_test_communicator(world, store);
    Model model;
    Rank rank(model, schedule, world.rank);
    class Watched final : public Stage {
     public:
      explicit Watched(ChainStage& inner) : inner_(inner) {}
      Message input(int m) const override { return inner_.input(m); }
      Message output(int m) const override { return inner_.output(m); }
      Tensor allocate(const Message& message) override { return inner_.allocate(message); }
      Tensor forward(int m, Tensor x) override {
        Tensor y = inner_.forward(m, std::move(x));
        peak = std::max(peak, inner_.microbatches_in_flight());
        return y;
      }
      Tensor backward(int m, Tensor g, bool later) override {
        return inner_.backward(m, std::move(g), later);
      }
      void weight_backward(int m) override { inner_.weight_backward(m); }
      int peak = 0;

     private:
      ChainStage& inner_;
    } watched(*rank.stages.begin()->second);
    PipelineExecutor(schedule, *pp, {{world.rank, &watched}}).run();
    EXPECT_EQ(watched.peak, 3 - world.rank);
    EXPECT_EQ(watched.peak, simulation.peak_microbatches[static_cast<std::size_t>(world.rank)]);
    pp->barrier()->wait();
  });
}

TEST(Pipeline, RefusesStagesThatAreNotTheSchedules) {
  const Schedule schedule =
      make_schedule({.kind = ScheduleKind::simple, .ranks = 1, .microbatches = 2});
  test::run_thread_ranks(1, [&](const World& world, Store& store) {
    const auto pp = testing::make_test_communicator(world, store);
    Model model;
    const auto text = [&](auto&& body) { return test::error_text(body); };
    EXPECT_THAT(text([&] { PipelineExecutor(schedule, *pp, {}); }),
                HasSubstr("gives stage 0 to rank 0 of the pipeline, and rank 0 lacks it"));
    EXPECT_THAT(text([&] { ChainStage(model.context, model.gpt2, {3, 12}, {}); }),
                HasSubstr("units [3, 12) of a model of 9"));
    Rank rank(model, schedule, 0);
    rank.stages.at(0)->begin(std::span(model.microbatches).first(1));
    PipelineExecutor executor(schedule, *pp, rank.table);
    EXPECT_THAT(text([&] { executor.run(); }), HasSubstr("microbatch 1 of 1"));
    ChainStage split(model.context, model.gpt2, {0, 4}, {.sequence_parts = 4});
    split.begin(model.microbatches);
    EXPECT_THAT(text([&] { (void)split.output(0); }),
                HasSubstr("a sequence of 11 positions does not divide into 4 parts"));
  });
}

// Computes nothing, and keeps its receive buffers.
class IdleStage : public Stage {
 public:
  static constexpr float kUntouched = -7;
  IdleStage(bool first, bool last) : first_(first), last_(last) {}
  Message input(int) const override { return {{kRows, kLength}, DType::f32}; }
  Message output(int) const override { return {{kRows, kLength}, DType::f32}; }
  Tensor allocate(const Message& message) override {
    received.push_back(filled(message, kUntouched));
    return received.back();
  }
  Tensor forward(int microbatch, Tensor) override {
    if (before_forward) before_forward(microbatch);
    return last_ ? Tensor() : filled(output(microbatch), static_cast<float>(microbatch));
  }
  Tensor backward(int microbatch, Tensor, bool) override {
    return first_ ? Tensor() : filled(input(microbatch), 0);
  }
  void weight_backward(int) override {}

  std::function<void(int microbatch)> before_forward;

 private:
  Tensor filled(const Message& message, float value) {
    const Tensor tensor = Tensor::empty(message.shape, message.dtype, from ? *from : *memory_,
                                        MemoryTag::activations);
    testing::set_values(tensor,
                        std::vector<float>(static_cast<std::size_t>(tensor.count()), value));
    return tensor;
  }
  std::unique_ptr<MemoryResource> memory_ = testing::make_test_device_memory();
  bool first_, last_;

 public:
  MemoryResource* from = nullptr;  // null: memory of its own
  std::vector<Tensor> received;
};

// An offloaded microbatch is announced `horizon` computations before its backward. Messages do not
// count as computations.
TEST(Pipeline, AnnouncesABackwardAGivenNumberOfComputationsAhead) {
  class Expecting final : public IdleStage {
   public:
    using IdleStage::IdleStage;
    Tensor forward(int microbatch, Tensor x) override {
      ++computed;
      return IdleStage::forward(microbatch, std::move(x));
    }
    Tensor backward(int microbatch, Tensor gradient, bool later) override {
      backward_at[microbatch] = computed++;
      return IdleStage::backward(microbatch, std::move(gradient), later);
    }
    void expect_backward(int microbatch) override { expected_at.emplace(microbatch, computed); }
    int computed = 0;
    std::map<int, int> backward_at, expected_at;  // by microbatch: computations before it
  };
  const Schedule schedule =
      make_schedule({.kind = ScheduleKind::one_f_one_b, .ranks = 2, .microbatches = kMicrobatches});
  for (const int horizon : {0, 1, 3})
    test::run_thread_ranks(2, [&](const World& world, Store& store) {
      const auto pp = testing::make_test_communicator(world, store);
      Expecting stage(world.rank == 0, world.rank == 1);
      PipelineExecutor(schedule, *pp, {{world.rank, &stage}}, nullptr, horizon).run();
      EXPECT_EQ(stage.expected_at.size(), horizon == 0 ? 0U : stage.backward_at.size());
      for (const auto& [microbatch, at] : stage.expected_at)
        EXPECT_EQ(at, std::max(stage.backward_at.at(microbatch) - horizon + 1, 0)) << microbatch;
      pp->barrier()->wait();
    });
}

// A stage throws, for example out_of_memory. No message in flight may arrive afterwards,
// because its memory may be freed. The other ranks receive the error instead of waiting
// for their deadlines.
TEST(Pipeline, AStageThatThrowsEndsTheStepOnEveryRank) {
  const Schedule schedule =
      make_schedule({.kind = ScheduleKind::simple, .ranks = 3, .microbatches = kMicrobatches});
  const auto deadline = Deadline::in_seconds(100);
  const auto errors = test::thread_rank_errors(3, [&](const World& world, Store& store) {
    const auto pp = testing::make_test_communicator(world, store);
    IdleStage stage(world.rank == 0, world.rank == 2);
    stage.before_forward = [&](int microbatch) {
      if (world.rank == 1 && microbatch == 1) throw_error(ErrorCode::out_of_memory, "no memory");
      if (world.rank == 0 && microbatch == 2) store.get("failed", deadline);
    };
    PipelineExecutor executor(schedule, *pp, {{world.rank, &stage}});
    try {
      executor.run();
    } catch (const Error&) {
      if (world.rank == 1) {
        store.set("failed", "");
        // This rank continues: rank 0 now sends the message that it has begun to receive.
        store.get("sent", deadline);
        EXPECT_EQ(stage.received.size(), 3U) << "one more was received than computed";
        EXPECT_EQ(testing::values_of<float>(stage.received.back())[0], IdleStage::kUntouched);
      }
      if (world.rank == 0) store.set("sent", "");
      throw;
    }
  });
  EXPECT_THAT(errors[1], HasSubstr("no memory"));
  // The other ranks report "rank 1 aborted", or "left" if it was already gone. Both have the cause.
  for (const int other : {0, 2})
    EXPECT_THAT(errors[static_cast<std::size_t>(other)],
                HasSubstr("its step of the pipeline failed: no memory"));
}

// The allocations and releases of one of two ranks in a step, in order: "+0 +1 -0 ...". `done`: the
// answer when the executor tests a message in flight.
std::string memory_of_a_step(int rank, bool repeatable, const std::function<bool()>& done) {
  const Schedule schedule =
      make_schedule({.kind = ScheduleKind::one_f_one_b, .ranks = 2, .microbatches = 4});
  const auto source = testing::make_test_device_memory();
  nn::PlannedMemory memory(*source);
  test::IdleCommunicator pp(rank, 2, memory, done);
  class Forgetful final : public IdleStage {
   public:
    using IdleStage::IdleStage;
    Tensor allocate(const Message& message) override {
      IdleStage::allocate(message);
      return std::exchange(received.back(), {});
    }
  } stage(rank == 0, rank == 1);
  stage.from = &memory;
  PipelineExecutor executor(schedule, pp, {{rank, &stage}});
  std::optional<RepeatableStep> repeats;
  if (repeatable) repeats.emplace();
  memory.begin_recording();
  executor.run();
  const nn::MemorySequence sequence = memory.end_recording();
  EXPECT_EQ(sequence.outliving, 0);
  std::string text;
  for (const auto& call : sequence.calls)
    text += fmt::format("{}{} ", call.bytes > 0 ? '+' : '-', call.block);
  return text;
}

// Captured steps share the plan of one recorded step. An output's memory is released when its
// gradient arrives, a gradient's at the end.
TEST(Pipeline, CapturedStepsReleaseMessagesInAFixedOrder) {
  for (const int rank : {0, 1}) {
    const auto memory = [&](bool repeatable, const std::function<bool()>& done) {
      return memory_of_a_step(rank, repeatable, done);
    };
    const auto never = [] { return false; };
    const auto always = [] { return true; };
    const auto now_and_then = [asked = 0]() mutable { return ++asked % 3 == 0; };
    const std::string want = memory(true, never);
    EXPECT_EQ(memory(true, always), want) << "rank " << rank;
    EXPECT_EQ(memory(true, now_and_then), want) << "rank " << rank;
    EXPECT_EQ(want, rank == 0 ? "+0 +1 +2 -0 -1 +3 +4 -2 -3 +5 +6 +7 -4 -5 -6 -7 "
                              : "+0 -0 +1 +2 -1 +3 +4 -3 +5 +6 -5 +7 -2 -4 -6 -7 ");
    EXPECT_NE(memory(false, always), memory(false, never))
        << "without capture the order depends on timing";
  }
}

}  // namespace
}  // namespace shoal::parallel
