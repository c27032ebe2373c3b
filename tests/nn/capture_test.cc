// Step capture: the memory plan serves recorded allocations, graphs replay captured steps, and
// steps that differ fall back with a reason.
#include <algorithm>
#include <array>
#include <barrier>
#include <cstring>
#include <functional>
#include <list>
#include <random>
#include <thread>
#include <vector>

#include "capture_memory.h"
#include "support/noting_backend.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/nn/capture/deferred_results.h"
#include "shoal/nn/capture/staged_inputs.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"
#include "shoal/runtime/memory/limited_memory.h"

namespace shoal::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using shoal::test::NotingBackend;
using test::CaptureMemory;

// Random allocations and frees from `seed`. Every block is filled when allocated and checked when
// freed, so that overlapping blocks are detected.
void random_step(MemoryResource& memory, std::uint32_t seed, int calls) {
  std::mt19937 random(seed);
  struct Block {
    Buffer buffer;
    unsigned char mark = 0;
  };
  std::vector<Block> live;
  for (int i = 0; i < calls; ++i) {
    if (!live.empty() && random() % 5 < 2) {
      const std::size_t at = random() % live.size();
      const auto* const bytes = static_cast<const unsigned char*>(live[at].buffer.data());
      for (std::size_t k = 0; k < live[at].buffer.size(); ++k) ASSERT_EQ(bytes[k], live[at].mark);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      continue;
    }
    Block block{Buffer(memory, 1 + random() % 3000, MemoryTag::activations),
                static_cast<unsigned char>(random() % 256)};
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block.buffer.data()) % 64, 0u);
    std::memset(block.buffer.data(), block.mark, block.buffer.size());
    live.push_back(std::move(block));
  }
  for (const Block& block : live) {
    const auto* const bytes = static_cast<const unsigned char*>(block.buffer.data());
    for (std::size_t k = 0; k < block.buffer.size(); ++k) ASSERT_EQ(bytes[k], block.mark);
  }
}

TEST(PlannedMemory, ServesTheRecordedStepFromOneArena) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    CaptureMemory memory;
    memory.planned.begin_recording();
    random_step(memory.planned, seed, 200);
    const MemorySequence sequence = memory.planned.end_recording();
    EXPECT_EQ(sequence.outliving, 0);
    EXPECT_GE(sequence.arena_bytes, sequence.live_bytes);
    EXPECT_LE(sequence.live_bytes, sequence.pool_bytes);
    memory.planned.prepare(sequence);
    EXPECT_EQ(memory.source.total().current, sequence.arena_bytes)
        << "what the pool kept is given back";
    const std::int64_t allocations = memory.source.allocations();
    for (int step = 0; step < 3; ++step) {
      memory.planned.begin_serving(sequence, true);
      random_step(memory.planned, seed, 200);
      EXPECT_THAT(memory.planned.end_serving(), IsEmpty());
    }
    EXPECT_EQ(memory.source.allocations(), allocations);
  }
}

TEST(PlannedMemory, AStepThatDiffersGetsThePoolsMemory) {
  CaptureMemory memory;
  memory.planned.begin_recording();
  random_step(memory.planned, 1, 60);
  const MemorySequence sequence = memory.planned.end_recording();
  memory.planned.prepare(sequence);
  for (const int calls : {59, 61, 200}) {
    memory.planned.begin_serving(sequence, false);
    random_step(memory.planned, 1, calls);
    EXPECT_THAT(memory.planned.end_serving(), Not(IsEmpty())) << calls;
  }
  memory.planned.begin_serving(sequence, false);
  random_step(memory.planned, 2, 60);
  EXPECT_THAT(memory.planned.end_serving(), HasSubstr("call"));
  memory.planned.begin_serving(sequence, true);
  EXPECT_THROW(Buffer(memory.planned, 100000, MemoryTag::activations), Error);
  EXPECT_THAT(memory.planned.end_serving(), HasSubstr("100000 bytes"));
  // The recorded step is then served again.
  memory.planned.begin_serving(sequence, true);
  random_step(memory.planned, 1, 60);
  EXPECT_THAT(memory.planned.end_serving(), IsEmpty());
}

TEST(PlannedMemory, BlocksThatOutliveAStepAreNotInItsArena) {
  CaptureMemory memory;
  Buffer before(memory.planned, 64, MemoryTag::data), kept;
  const auto step = [&] {
    before.reset();  // from an earlier step, so not part of this one
    const Buffer activation(memory.planned, 1000, MemoryTag::activations);
    Buffer next(memory.planned, 500, MemoryTag::activations);
    std::memset(next.data(), 7, next.size());
    kept = std::move(next);
  };
  memory.planned.begin_recording();
  step();
  const MemorySequence sequence = memory.planned.end_recording();
  EXPECT_EQ(sequence.outliving, 1);
  EXPECT_EQ(sequence.arena_bytes, 1024);
  EXPECT_THAT(sequence.offsets, ElementsAre(0, -1));
  memory.planned.prepare(sequence);
  for (int i = 0; i < 2; ++i) {
    memory.planned.begin_serving(sequence, true);
    step();
    EXPECT_THAT(memory.planned.end_serving(), IsEmpty());
    EXPECT_EQ(static_cast<const unsigned char*>(kept.data())[499], 7);
  }
}

#ifdef __SANITIZE_ADDRESS__
TEST(PlannedMemoryDeath, WritesOutsideABlockAreDetected) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  CaptureMemory memory;
  const auto step = [&](bool beside, bool after) {
    Buffer first(memory.planned, 1000, MemoryTag::activations);
    const Buffer second(memory.planned, 1000, MemoryTag::activations);
    auto* const at = static_cast<volatile char*>(first.data());
    at[beside ? 1001 : 999] = 1;
    first.reset();
    if (after) at[0] = 1;
  };
  memory.planned.begin_recording();
  step(false, false);
  const MemorySequence sequence = memory.planned.end_recording();
  memory.planned.prepare(sequence);
  for (const bool beside : {false, true})
    for (const bool after : {false, true}) {
      memory.planned.begin_serving(sequence, false);
      if (beside || after) {
        EXPECT_DEATH(step(beside, after), "use-after-poison(.|\n)*WRITE of size 1");
      }
      step(false, false);
      EXPECT_THAT(memory.planned.end_serving(), IsEmpty());
    }
}
#endif

TEST(PlannedMemory, ALiveBlockKeepsItsArena) {
  CaptureMemory memory;
  Buffer kept;
  const auto step = [&](bool keeps) {
    Buffer block(memory.planned, 1000, MemoryTag::activations);
    std::memset(block.data(), keeps ? 1 : 2, block.size());
    if (keeps) kept = std::move(block);
  };
  memory.planned.begin_recording();
  step(false);
  const MemorySequence sequence = memory.planned.end_recording();
  memory.planned.prepare(sequence);
  memory.planned.begin_serving(sequence, false);
  step(true);
  EXPECT_THAT(memory.planned.end_serving(), HasSubstr("ended after 1 of 2"));
  EXPECT_FALSE(memory.planned.is_prepared_for(sequence));
  memory.planned.prepare(sequence);
  memory.planned.begin_serving(sequence, true);
  step(false);
  EXPECT_THAT(memory.planned.end_serving(), IsEmpty());
  EXPECT_EQ(static_cast<const unsigned char*>(kept.data())[999], 1);
  kept.reset();
}

// y += x * factor, through a temporary block. `factor` is a host value of the step.
struct Toy {
  CaptureMemory memory;
  NotingBackend backend;
  std::unique_ptr<kernels::Kernels> kernels = kernels::make_cpu_kernels({.threads = 1});
  std::vector<std::string> said;
  StepCapture capture{*kernels,
                      memory.planned,
                      {.warmup = 3,
                       .most_kept = 2,
                       .say = [this](const std::string& line) { said.push_back(line); },
                       .backend = &backend,
                       .before_waiting =
                           [this] {
                             if (lost) throw Error(ErrorCode::timeout, "a rank is lost");
                           }}};
  double x = 1, y = 0;
  bool lost = false;

  void step(double factor, std::size_t bytes = 256, bool with_key = true) {
    capture.run(with_key ? fmt::format("{} {}", factor, bytes) : std::string("one"), [=, this] {
      const Buffer block(memory.planned, bytes, MemoryTag::activations);
      auto* const product = static_cast<double*>(block.data());
      backend.queue([=, this] { *product = x * factor; });
      backend.queue([=, this] { y += *product; });
    });
  }
};

TEST(StepCapture, ReplaysAfterItsWarmup) {
  Toy toy;
  double want = 0;
  for (int i = 1; i <= 10; ++i) {
    toy.x = i;
    toy.step(2);
    want += 2 * i;
    EXPECT_EQ(toy.y, want) << i;
  }
  EXPECT_EQ(toy.backend.launched, 7) << "three steps are run call by call";
  const StepCapture::Statistics statistics = toy.capture.statistics();
  EXPECT_EQ(statistics.direct, 3);
  EXPECT_EQ(statistics.captured, 1);
  EXPECT_EQ(statistics.replayed, 7);
  EXPECT_EQ(statistics.arena_bytes, 256);
  EXPECT_THAT(toy.said, ElementsAre(HasSubstr("a graph with 1 allocations")));
}

TEST(StepCapture, WaitsForNoStreamBehindALostRank) {
  Toy toy;
  for (int i = 0; i < 3; ++i) toy.step(2);
  toy.lost = true;
  EXPECT_THROW(toy.step(2), Error) << "capturing waits";
  toy.lost = false;
  toy.step(2);
  toy.lost = true;
  EXPECT_NO_THROW(toy.step(2)) << "replaying does not";
  EXPECT_EQ(toy.capture.statistics().replayed, 2);
}

TEST(StepCapture, EachKeyHasItsGraphAndTheOldestGoes) {
  Toy toy;
  double want = 0;
  for (int round = 0; round < 5; ++round)
    for (const double factor : {2.0, 3.0}) {
      toy.step(factor);
      want += factor;
      EXPECT_EQ(toy.y, want);
    }
  EXPECT_EQ(toy.capture.statistics().captured, 2);
  for (int i = 0; i < 4; ++i) toy.step(5);  // two kinds are kept; this is the third
  EXPECT_EQ(toy.y, want + 20);
  EXPECT_EQ(toy.backend.destroyed, 1);
  toy.step(2);  // its counts were forgotten, so warmup restarts
  EXPECT_EQ(toy.capture.statistics().captured, 3);
}

TEST(StepCapture, ALargerArenaInvalidatesCapturedGraphs) {
  Toy toy;
  for (int i = 0; i < 5; ++i) toy.step(2, 256);
  for (int i = 0; i < 5; ++i) toy.step(2, 4096);
  EXPECT_EQ(toy.backend.destroyed, 1);
  for (int i = 0; i < 2; ++i) toy.step(2, 256);
  EXPECT_EQ(toy.y, 24);
  EXPECT_EQ(toy.capture.statistics().captured, 3) << "captured again, without another warmup";
}

// In 1 MiB, an arena of 640 KiB leaves no room for another 512 KiB. The arena is given back, and
// the next step is captured again.
TEST(StepCapture, ItsArenaIsGivenBackForOtherWork) {
  constexpr std::size_t kKiB = 1024;
  Toy toy;
  for (int i = 0; i < 5; ++i) toy.step(2, 640 * kKiB);
  toy.said.clear();
  for (int round = 1; round <= 2; ++round) {
    {
      const Buffer fits(toy.memory.planned, 256 * kKiB, MemoryTag::activations);
      EXPECT_EQ(toy.capture.statistics().given_back, round - 1);
      const Buffer evaluation(toy.memory.planned, 512 * kKiB, MemoryTag::activations);
      EXPECT_EQ(toy.capture.statistics().given_back, round);
      EXPECT_EQ(toy.capture.statistics().arena_bytes, 0);
      EXPECT_THAT(toy.said, ElementsAre(HasSubstr("their arena of 0.6 MiB: it is given back")));
    }
    for (int i = 0; i < 3; ++i) toy.step(2, 640 * kKiB);
    EXPECT_EQ(toy.y, 2 * (5 + 3 * round));
    EXPECT_EQ(toy.capture.statistics().captured, 1 + round) << "without another warmup";
  }
  EXPECT_EQ(toy.said.size(), 1u) << "reported once; later captures are not reported";
  EXPECT_EQ(toy.backend.launched, 2 + 2 * 3);
  // An allocation that fails even without the arena throws. So does one from a thread other
  // than the computing one.
  EXPECT_THROW(Buffer(toy.memory.planned, 2048 * kKiB, MemoryTag::activations), Error);
  toy.step(2, 640 * kKiB);
  std::thread([&] {
    EXPECT_THROW(Buffer(toy.memory.planned, 512 * kKiB, MemoryTag::data), Error);
  }).join();
  EXPECT_EQ(toy.capture.statistics().given_back, 3);
}

// Uncaptured steps of a second shape need the memory of the first shape's arena. The step that
// records counts as one of them.
TEST(StepCapture, ItsArenaIsGivenBackForUncapturedSteps) {
  Toy toy;
  for (const std::size_t kibibytes : {600U, 700U, 600U, 700U})
    for (int i = 0; i < 4; ++i) toy.step(2, 1024 * kibibytes);
  EXPECT_EQ(toy.y, 2 * 16);
  const StepCapture::Statistics statistics = toy.capture.statistics();
  EXPECT_EQ(statistics.direct, 2 * 3);
  EXPECT_EQ(statistics.given_back, 1) << "one arena serves both, from when both are captured";
}

TEST(StepCapture, StepsThatCannotBeCapturedRunCallByCall) {
  Toy toy;
  toy.backend.refuses = true;
  for (int i = 0; i < 6; ++i) toy.step(2);
  EXPECT_EQ(toy.y, 12);
  EXPECT_EQ(toy.capture.statistics().direct, 6);
  EXPECT_THAT(toy.said, ElementsAre(HasSubstr("this stream cannot be captured")));
  // A step whose memory differs each time cannot be captured either.
  Toy other;
  for (std::size_t i = 1; i <= 6; ++i) other.step(2, 256 * i, false);
  EXPECT_EQ(other.y, 12);
  EXPECT_EQ(other.backend.launched, 0);
  EXPECT_THAT(other.said, ElementsAre(HasSubstr("the step's memory differs")));
}

// A sum in which "hosts take part", twice a step: y += x * factor, z += y, y = 0. Counting
// the sums is host work.
struct ToyOfPieces {
  using Exchange = std::function<std::vector<std::uint64_t>(std::span<const std::uint64_t>)>;
  explicit ToyOfPieces(Exchange exchange = {})
      : capture(*kernels, memory.planned,
                {.warmup = 3,
                 .say = [this](const std::string& line) { said.push_back(line); },
                 .backend = &backend,
                 .exchange = std::move(exchange)}) {}
  CaptureMemory memory;
  NotingBackend backend;
  std::unique_ptr<kernels::Kernels> kernels = kernels::make_cpu_kernels({.threads = 1});
  std::vector<std::string> said;
  StepCapture capture;
  double x = 1, y = 0, z = 0;
  std::vector<std::string> order;  // of the operations that ran

  void step(std::size_t bytes = 256) {
    capture.run(fmt::format("{}", bytes), [=, this] {
      const Buffer block(memory.planned, bytes, MemoryTag::activations);
      auto* const product = static_cast<double*>(block.data());
      const auto host = [this](const char* name) {
        host_node([this, name] { order.emplace_back(name); });
      };
      const auto device = [this](const char* name, const std::function<void()>& work) {
        backend.queue([=, this] { order.emplace_back(name), work(); });
      };
      device("forward", [=, this] { *product = 2 * x; });
      host("start");
      device("backward", [=, this] { y += *product; });
      host("start");
      host("wait");
      host("wait");
      device("update", [this] { z += std::exchange(y, 0); });
      host("last");
    });
  }
};

TEST(StepCapture, ReplaysHostWorkBetweenItsPieces) {
  ToyOfPieces toy;
  for (int i = 1; i <= 8; ++i) {
    toy.order.clear();
    const double before = toy.z;
    toy.x = i;
    toy.step();
    EXPECT_EQ(toy.z, before + 2 * i);
    EXPECT_THAT(toy.order, ElementsAre("forward", "start", "backward", "start", "wait", "wait",
                                       "update", "last"));
    EXPECT_FALSE(is_capturing());
  }
  const StepCapture::Statistics statistics = toy.capture.statistics();
  EXPECT_EQ(statistics.replayed, 5);
  EXPECT_EQ(statistics.pieces, 3) << "no graph without queued work";
  EXPECT_EQ(toy.backend.launched, 15);
  EXPECT_THAT(toy.said, ElementsAre(HasSubstr("step capture: 3 graphs with 1 allocations")));
}

// No graph has been launched by then. The step runs once, call by call.
TEST(StepCapture, APieceThatCannotBeCapturedUndoesThoseBefore) {
  ToyOfPieces toy;
  toy.backend.refused_begins = 2;
  for (int i = 1; i <= 5; ++i) {
    toy.order.clear();
    toy.step();
    EXPECT_EQ(toy.order.size(), 8U) << i;
  }
  EXPECT_EQ(toy.z, 10);
  EXPECT_EQ(toy.backend.launched, 0);
  EXPECT_EQ(toy.backend.destroyed, 2);
  EXPECT_FALSE(is_capturing());
  EXPECT_THAT(toy.said, ElementsAre(HasSubstr("this stream cannot be captured")));
}

// A step that fails in the middle of its replay throws, and the later pieces do not run.
TEST(StepCapture, AnErrorBetweenPiecesEndsTheReplay) {
  ToyOfPieces toy;
  bool fails = false;
  const auto step = [&] {
    toy.capture.run("one", [&] {
      toy.backend.queue([&] { ++toy.y; });
      host_node([&] {
        if (fails) throw Error(ErrorCode::peer_lost, "rank 1 is gone");
      });
      toy.backend.queue([&] { ++toy.z; });
    });
  };
  for (int i = 0; i < 5; ++i) step();
  fails = true;
  EXPECT_THROW(step(), Error);
  EXPECT_EQ(toy.y, 6);
  EXPECT_EQ(toy.z, 5);
}

// Two ranks that agree on each step before they run it.
class Pair {
 public:
  auto exchange_of(int rank) {
    return [this, rank](std::span<const std::uint64_t> own) {
      told_.at(static_cast<std::size_t>(rank)).assign(own.begin(), own.end());
      meet_.arrive_and_wait();
      std::vector<std::uint64_t> all = told_[0];
      all.insert(all.end(), told_[1].begin(), told_[1].end());
      meet_.arrive_and_wait();
      return all;
    };
  }
  // Runs `steps` for both ranks, each on its own thread.
  static void run(const std::function<void(int rank)>& steps) {
    std::thread other([&] { steps(1); });
    steps(0);
    other.join();
  }

 private:
  std::array<std::vector<std::uint64_t>, 2> told_;
  std::barrier<> meet_{2};
};

TEST(StepCapture, RanksThatAgreeCaptureAndReplayTheSameSteps) {
  Pair pair;
  std::array<ToyOfPieces, 2> toys{ToyOfPieces(pair.exchange_of(0)),
                                  ToyOfPieces(pair.exchange_of(1))};
  // By rank, for each step: 0 call by call, 1 replayed, 2 captured and replayed.
  std::array<std::vector<int>, 2> did;
  const auto step = [&](int rank, std::size_t bytes) {
    ToyOfPieces& toy = toys.at(static_cast<std::size_t>(rank));
    const StepCapture::Statistics before = toy.capture.statistics();
    toy.step(bytes);
    const StepCapture::Statistics after = toy.capture.statistics();
    did.at(static_cast<std::size_t>(rank))
        .push_back(static_cast<int>(after.replayed - before.replayed +
                                    (after.captured - before.captured)));
  };
  // Every third batch of rank 1 has another shape, and so is another kind of step.
  Pair::run([&](int rank) {
    for (int i = 0; i < 12; ++i) step(rank, rank == 1 && i % 3 == 2 ? 192 : 256);
  });
  EXPECT_THAT(did[0], ElementsAre(0, 0, 0, 0, 2, 0, 1, 1, 0, 1, 1, 2));
  EXPECT_EQ(did[1], did[0]);
  // A larger arena invalidates only rank 1's graphs, but both ranks capture again.
  for (auto& list : did) list.clear();
  Pair::run([&](int rank) {
    for (int i = 0; i < 4; ++i) step(rank, rank == 1 ? 4096 : 256);
    for (int i = 0; i < 2; ++i) step(rank, 256);
  });
  EXPECT_THAT(did[0], ElementsAre(0, 0, 0, 2, 2, 1));
  EXPECT_EQ(did[1], did[0]);
  EXPECT_EQ(toys[0].z, 2 * 18);
  EXPECT_EQ(toys[1].z, 2 * 18);
}

TEST(StepCapture, NoRankCapturesAStepThatOneRankCannot) {
  Pair pair;
  std::array<ToyOfPieces, 2> toys{ToyOfPieces(pair.exchange_of(0)),
                                  ToyOfPieces(pair.exchange_of(1))};
  toys[1].backend.refuses = true;
  Pair::run([&](int rank) {
    for (int i = 0; i < 6; ++i) toys.at(static_cast<std::size_t>(rank)).step();
  });
  for (const ToyOfPieces& toy : toys) {
    EXPECT_EQ(toy.backend.launched, 0);
    EXPECT_EQ(toy.z, 12);
  }
  EXPECT_THAT(toys[0].said, ElementsAre(HasSubstr("another rank could not be captured")));
  EXPECT_THAT(toys[1].said, ElementsAre(HasSubstr("this stream cannot be captured")));
}

TEST(StepCapture, WithoutGraphsAStepThatDiffersIsPlannedAgain) {
  CaptureMemory memory;
  const auto kernels = kernels::make_cpu_kernels({.threads = 1});
  std::vector<std::string> said;
  StepCapture capture(*kernels, memory.planned,
                      {.warmup = 1, .say = [&](const std::string& line) { said.push_back(line); }});
  for (const std::uint32_t seed : {1u, 1u, 1u, 2u, 2u, 2u})
    capture.run("step", [&] { random_step(memory.planned, seed, 50); });
  const StepCapture::Statistics statistics = capture.statistics();
  EXPECT_EQ(statistics.direct, 2) << "recorded twice";
  EXPECT_EQ(statistics.served, 4);
  EXPECT_EQ(statistics.deviated, 1);
  EXPECT_THAT(said, ElementsAre(HasSubstr("a plan with"), HasSubstr("differs from its plan")))
      << "the second plan has room in the first one's arena";
}

TEST(StagedInputs, KeepTheirMemoryWhileShapesHold) {
  const auto host = make_host_memory();
  const auto kernels = kernels::make_cpu_kernels({.threads = 1});
  StagedInputs staged(*kernels, *host);
  const auto filled_with = [&](std::int64_t length, std::int32_t value) {
    const Tensor tensor = Tensor::empty({2, length}, DType::i32, *host, MemoryTag::data);
    std::fill_n(tensor.data<std::int32_t>(), tensor.count(), value);
    return tensor;
  };
  const void* first = nullptr;
  for (int call = 0; call < 5; ++call) {
    const std::vector<Tensor>& here =
        staged.fill({filled_with(100, call), Tensor(), filled_with(3, -call)});
    ASSERT_EQ(here.size(), 3u);
    EXPECT_FALSE(here[1].defined());
    EXPECT_EQ(here[0].const_data<std::int32_t>()[199], call);
    EXPECT_EQ(here[2].const_data<std::int32_t>()[5], -call);
    if (call == 0) first = here[0].const_view().data;
    EXPECT_EQ(here[0].const_view().data, first);
  }
  EXPECT_EQ(staged.fill({filled_with(5, 9)})[0].const_data<std::int32_t>()[9], 9);
}

TEST(DeferredResults, AreThoseOfEachStepInOrder) {
  const auto host = make_host_memory();
  DeferredResults numbers({});
  EXPECT_THAT(numbers.take(), IsEmpty());
  const Tensor losses = Tensor::empty({3}, DType::f32, *host, MemoryTag::data);
  const Tensor norm = Tensor::empty({1}, DType::f64, *host, MemoryTag::data);
  // More steps than fit into one block, and again with the blocks that exist by then.
  for (const int steps : {1, 2000, 5, 3000}) {
    for (int step = 0; step < steps; ++step) {
      for (int i = 0; i < 3; ++i)
        losses.data<float>()[i] = static_cast<float>(step) + 0.25f * static_cast<float>(i);
      norm.data<double>()[0] = 1e-300 * step;
      numbers.note({losses.narrowed(0, 0, 1 + step % 3), norm});
    }
    const std::vector<std::vector<double>> taken = numbers.take();
    ASSERT_EQ(taken.size(), static_cast<std::size_t>(steps));
    for (int step = 0; step < steps; ++step) {
      std::vector<double> wanted;
      for (int i = 0; i <= step % 3; ++i) wanted.push_back(step + 0.25 * i);
      wanted.push_back(1e-300 * step);
      ASSERT_EQ(taken[static_cast<std::size_t>(step)], wanted) << step;
    }
  }
  // This result is larger than a whole block.
  const Tensor large = Tensor::zeros({10000}, DType::f32, *host, MemoryTag::data);
  numbers.note({norm});
  numbers.note({large, norm});
  const auto taken = numbers.take();
  EXPECT_EQ(taken[0], std::vector<double>{1e-300 * 2999});
  EXPECT_EQ(taken[1].size(), 10001u);
  EXPECT_THROW(numbers.note({Tensor::zeros({1}, DType::i32, *host, MemoryTag::data)}), Error);
}

}  // namespace
}  // namespace shoal::nn
