// The native backend's results: ranks as threads and as processes, all operations, dtypes,
// algorithms and kinds of memory.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <random>

#include "predictable.h"
#include "support/error_text.h"
#include "support/ranks.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/native/thresholds.h"
#include "shoal/collectives/backend/node_face.h"
#include "shoal/collectives/backend/progress_thread.h"
#include "shoal/collectives/diagnosis/flight_recorder.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using shoal::test::error_text;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CommunicatorOptions options_for(const std::string& algorithm) {
  CommunicatorOptions options;
  options.algorithm = algorithm;
  options.deadline_seconds = 60;
  return options;
}

// matrix_test.cc covers ranks that are threads.
class NativeResults : public ::testing::TestWithParam<int> {};

TEST_P(NativeResults, AreExactWithProcessRanks) {
  const int size = GetParam();
  shoal::test::ProcessRanks ranks(size, [&](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options_for(""));
    const auto wrong = test::check_everything(*communicator, {0, 1, 17, 2055});
    if (!wrong.empty()) throw Error(ErrorCode::internal, wrong.front());
  });
  for (const auto& outcome : ranks.wait(100)) EXPECT_EQ(outcome.exit_status, 0) << outcome.error;
}

INSTANTIATE_TEST_SUITE_P(Processes, NativeResults, ::testing::Values(2, 3, 5));

// After many waits the progress threads sleep long. The last call is driven only by them.
TEST(Native, TheProgressThreadStillDrivesAfterManyWaitingCalls) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto node =
        native::make_node_communicator(world.rank, 2, store, "test/node", options_for(""));
    std::vector<float> values(1 << 18, 1.0f);
    const auto count = static_cast<std::int64_t>(values.size());
    const auto start = Clock::now();
    for (int done = 0;; ++done) {
      float agreed = seconds_since(start) < 0.05 ? 1.0f : 0.0f;
      node->all_reduce(&agreed, &agreed, 1, DType::f32, ReduceOp::max)->wait();
      if (done >= 99 && agreed == 0) break;
    }
    const std::int64_t before = node->statistics().by_progress_thread;
    const auto work =
        node->all_reduce(values.data(), values.data(), count, DType::f32, ReduceOp::sum);
    const auto asked = Clock::now();
    while (node->statistics().by_progress_thread == before && seconds_since(asked) < 30)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_GT(node->statistics().by_progress_thread, before);
    work->wait();
    EXPECT_EQ(values.front(), 2);
    EXPECT_EQ(values.back(), 2);
  });
}

// The progress thread drives operations that no caller drives, even if they are submitted while it
// sleeps, parks or is parked.
TEST(ProgressThread, DrivesOperationsWheneverTheyAreSubmitted) {
  struct Steps final : ProgressThread::Steps {
    bool drive() override {
      progress->none_in_flight();
      ++drives;
      return true;
    }
    void if_unlocked(const std::function<void()>& body) override {
      const std::lock_guard lock(mutex);
      body();
    }
    std::mutex mutex;
    ProgressThread* progress = nullptr;
    std::atomic<int> drives{0};
  } steps;
  ProgressThread progress(steps);
  steps.progress = &progress;
  progress.start();
  for (int round = 0; round < 6; ++round) {
    while (round % 2 == 1 && !progress.parked())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    {
      const std::lock_guard lock(steps.mutex);
      progress.count_in_flight(1);
      progress.driven();
    }
    progress.submitted(round % 3 == 0);
    while (steps.drives.load() <= round) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  while (!progress.parked()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  progress.end();
}

// The hierarchical communicator uses its host's groups like this: no other thread drives them, and
// a doorbell ends their sleep.
TEST(Native, DrivenByHandItSleepsUntilTheDoorbellRings) {
  constexpr int kRounds = 5, kLongMilliseconds = 30000;
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto node =
        native::make_node_communicator(world.rank, 2, store, "test/node", options_for(""));
    dynamic_cast<NodeFace&>(*node).drive_by_hand();
    const auto start = Clock::now();
    for (int round = 0; round < kRounds; ++round) {
      float value = 1;
      if (world.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const auto work = node->all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum);
      // Long enough for a progress thread to take an arrived message.
      if (world.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      while (!work->test()) dynamic_cast<NodeWork&>(*work).doze(kLongMilliseconds);
      EXPECT_EQ(value, 2);
    }
    EXPECT_EQ(node->statistics().by_progress_thread, 0);
    EXPECT_LT(seconds_since(start), kLongMilliseconds / 1000);
  });
}

// PyTorch's backend does this for threads that share a Communicator.
TEST(Native, ADrivingThreadStopsWhenInterrupted) {
  shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
    const auto node =
        native::make_node_communicator(world.rank, 2, store, "test/node", options_for(""));
    for (const bool may_spin : {false, true}) {
      float value = 1, word = 0;
      std::atomic<int> wanted{0};
      if (world.rank == 0) {
        const auto work = node->all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum);
        auto& driven = dynamic_cast<NodeWork&>(*work);
        const auto start = Clock::now();
        EXPECT_FALSE(driven.drive(Deadline::in_seconds(0.01), wanted, may_spin));
        std::thread other([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
          wanted = 1;
          driven.interrupt();
        });
        EXPECT_FALSE(driven.drive(Deadline::never(), wanted, may_spin));
        other.join();
        EXPECT_GE(seconds_since(start), 0.02);
        wanted = 0;
        node->send(&word, 1, DType::f32, 1)->wait();  // lets the other rank call
        EXPECT_TRUE(driven.drive(Deadline::never(), wanted, may_spin));
      } else {
        node->recv(&word, 1, DType::f32, 0)->wait();
        node->all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum)->wait();
      }
      EXPECT_EQ(value, 2);
    }
  });
}

// The table's rules also apply inside a host.
TEST(Native, TheTableOverridesThePlans) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    CommunicatorOptions options = options_for("");
    options.collectives =
        "all_reduce:0-256:@direct#all_reduce:host:64k-inf:@ring#broadcast:^inline";
    const auto communicator = make_communicator(world, store, options);
    Buffer symmetric(communicator->memory_resource(), 80000, MemoryTag::gradients);
    std::vector<float> plain(20000, 1.0f);
    const auto sum = [&](void* data, std::int64_t count) {
      communicator->all_reduce(data, data, count, DType::f32, ReduceOp::sum)->wait();
      return communicator->statistics();
    };
    const auto before = sum(plain.data(), 10);  // 40 bytes: the table has excluded inline
    EXPECT_EQ(before.inlined, 0);
    EXPECT_EQ(before.bounced, 1);
    EXPECT_THAT(before.why, HasSubstr("option collectives: all_reduce:0-256"));
    const auto inlined = sum(plain.data(), 100);
    EXPECT_EQ(inlined.inlined, 1);
    EXPECT_THAT(inlined.why, HasSubstr("built-in: all_reduce"));
    const auto ring = sum(plain.data(), 20000);
    EXPECT_EQ(ring.ring, 1);
    EXPECT_THAT(ring.why, AllOf(HasSubstr("option collectives"), HasSubstr("@ring")));
    EXPECT_EQ(plain[0], 8.0f);
    EXPECT_EQ(sum(symmetric.data(), 20000).ring, 1);  // the rule is for the other memory
    communicator->broadcast(plain.data(), 1, DType::f32, 0)->wait();
    EXPECT_EQ(communicator->statistics().inlined, 1);
    const std::string written = FlightRecorder("any", 0, {0}).to_json()["notices"].dump();
    EXPECT_THAT(written, HasSubstr("all_reduce of 2 ranks on one host from 0 bytes: direct "
                                   "(option collectives: all_reduce:0-256"));
  });
}

TEST(Native, DirectRemainsWhenEveryPlanIsExcluded) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    CommunicatorOptions options = options_for("");
    options.collectives = "all_reduce:0";
    const auto communicator = make_communicator(world, store, options);
    float value = 1;
    communicator->all_reduce(&value, &value, 1, DType::f32, ReduceOp::sum)->wait();
    EXPECT_EQ(value, 2.0f);
    EXPECT_EQ(communicator->statistics().inlined, 0);
  });
}

// Sums of random numbers depend on the order of additions. All ranks, all runs, and both the
// zero-copy and the bounced route must give the same bits.
TEST(Native, ResultsAreBitIdenticalOnAllRanksAndInBothKindsOfMemory) {
  constexpr std::int64_t kCount = 300001;
  for (const std::string algorithm : {"", "ring"}) {
    std::vector<std::vector<float>> results;
    std::mutex mutex;
    for (int run = 0; run < 2; ++run)
      shoal::test::run_thread_ranks(3, [&](const World& world, Store& store) {
        const auto communicator = make_communicator(world, store, options_for(algorithm));
        Buffer symmetric(communicator->memory_resource(), kCount * 4, MemoryTag::gradients);
        auto* values = static_cast<float*>(symmetric.data());
        std::mt19937 random(static_cast<unsigned>(world.rank));
        std::normal_distribution<float> normal;
        for (std::int64_t i = 0; i < kCount; ++i) values[i] = normal(random);
        std::vector<float> plain(values, values + kCount);
        communicator->all_reduce(values, values, kCount, DType::f32, ReduceOp::sum)->wait();
        communicator->all_reduce(plain.data(), plain.data(), kCount, DType::f32, ReduceOp::sum)
            ->wait();
        const std::lock_guard lock(mutex);
        results.push_back(plain);
        results.emplace_back(values, values + kCount);
      });
    for (const auto& result : results)
      ASSERT_EQ(std::memcmp(result.data(), results[0].data(), kCount * 4), 0) << algorithm;
  }
}

TEST(Native, MinAndMaxPropagateNaN) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options_for(""));
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max})
      for (const std::int64_t count : {8, 5000}) {
        std::vector<float> values(static_cast<std::size_t>(count), static_cast<float>(world.rank));
        values[3] = world.rank == 1 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
        communicator->all_reduce(values.data(), values.data(), count, DType::f32, op)->wait();
        EXPECT_TRUE(std::isnan(values[3])) << to_string(op);
        EXPECT_EQ(values[2], op == ReduceOp::min ? 0.0f : 2.0f);
      }
  });
}

TEST(Native, SixteenBitFloatsAccumulateInSinglePrecision) {
  // 256 + 1 + 1 + 1 + 1 is 260. Rounded to bf16 after each addition, it would stay 256.
  for (const std::string algorithm : {"", "direct", "ring"})
    shoal::test::run_thread_ranks(5, [&](const World& world, Store& store) {
      const auto communicator = make_communicator(world, store, options_for(algorithm));
      for (const std::int64_t count : {64, 9000}) {
        std::vector<bfloat16> values(static_cast<std::size_t>(count),
                                     bfloat16(world.rank == 0 ? 256.0f : 1.0f));
        communicator->all_reduce(values.data(), values.data(), count, DType::bf16, ReduceOp::sum)
            ->wait();
        EXPECT_EQ(static_cast<float>(values[7]), 260.0f) << algorithm << " " << count;
      }
    });
}

TEST(Native, CountsRoutesAndSymmetricBytes) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto host = make_host_memory();
    CountingMemory counted(*host);
    CommunicatorOptions options = options_for("");
    options.counted_by = &counted;
    const auto communicator = make_communicator(world, store, options);
    EXPECT_EQ(communicator->backend(), "native");
    constexpr std::int64_t kCount = 1 << 16;
    {
      Buffer symmetric(communicator->memory_resource(), kCount * 4, MemoryTag::gradients);
      EXPECT_EQ(counted.usage(MemoryTag::gradients).current, kCount * 4);
      auto* values = static_cast<float*>(symmetric.data());
      std::fill_n(values, kCount, 1.0f);
      communicator->all_reduce(values, values, kCount, DType::f32, ReduceOp::sum)->wait();
    }
    EXPECT_EQ(counted.usage(MemoryTag::gradients).current, 0);
    // Short enough for bounce slots; single_copy_test.cc has the longer ones.
    const std::int64_t bounced = native::single_copy_from(Operation::all_reduce, 2) / 4 - 1;
    std::vector<float> plain(static_cast<std::size_t>(bounced), 1.0f);
    communicator->all_reduce(plain.data(), plain.data(), bounced, DType::f32, ReduceOp::sum)
        ->wait();
    communicator->all_reduce(plain.data(), plain.data(), 4, DType::f32, ReduceOp::sum)->wait();
    const CommunicatorStatistics s = communicator->statistics();
    EXPECT_EQ(s.operations, 3);
    EXPECT_EQ(s.zero_copy, 1);
    EXPECT_EQ(s.bounced, 1);
    EXPECT_EQ(s.inlined, 1);
    EXPECT_GT(s.bounced_bytes, 0);
  });
}

TEST(Native, SymmetricMemoryGrowsAndIsReused) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto communicator = make_communicator(world, store, options_for(""));
    MemoryResource& memory = communicator->memory_resource();
    // Ranks deliberately allocate differently, because each operation announces where its buffers
    // are.
    Buffer extra;
    if (world.rank == 1) extra = Buffer(memory, 100 << 20, MemoryTag::communication);
    std::vector<Buffer> buffers;
    for (int i = 0; i < 5; ++i) buffers.emplace_back(memory, 30 << 20, MemoryTag::gradients);
    constexpr std::int64_t kCount = 10000;
    for (Buffer& buffer : buffers) {
      auto* values = static_cast<std::int32_t*>(buffer.data());
      std::fill_n(values, kCount, world.rank + 1);
      communicator->all_reduce(values, values, kCount, DType::i32, ReduceOp::sum)->wait();
      EXPECT_EQ(values[kCount - 1], 3);
    }
    EXPECT_EQ(communicator->statistics().zero_copy, 5);
    void* first = nullptr;
    {
      const Buffer once(memory, 3 << 20, MemoryTag::gradients);
      first = once.data();
    }
    const Buffer again(memory, 3 << 20, MemoryTag::gradients);
    EXPECT_EQ(again.data(), first);
  });
}

TEST(Native, SeveralCommunicatorsShareAStore) {
  shoal::test::run_thread_ranks(3, [](const World& world, Store& store) {
    const auto first = make_communicator(world, store, options_for(""));
    const auto second = make_communicator(world, store, options_for("ring"));
    for (int i = 0; i < 20; ++i) {
      std::vector<std::int64_t> a(500, world.rank), b(500, i);
      auto one = first->all_reduce(a.data(), a.data(), 500, DType::i64, ReduceOp::sum);
      auto two = second->all_reduce(b.data(), b.data(), 500, DType::i64, ReduceOp::sum);
      two->wait();
      one->wait();
      EXPECT_EQ(a[499], 3);
      EXPECT_EQ(b[499], 3 * i);
    }
  });
}

// A call like the one before it is published without recomputing its plan.
TEST(Native, CallsThatDifferFromTheOneBeforeAreNotConfusedWithIt) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options_for(""));
    const float own = world.rank == 0 ? 2.0f : 5.0f;
    std::vector<float> x(64);
    const auto reduced = [&](std::int64_t count, ReduceOp op) {
      std::ranges::fill(x, own);
      c->all_reduce(x.data(), x.data(), count, DType::f32, op)->wait();
      return x[static_cast<std::size_t>(count - 1)];
    };
    for (int repeat = 0; repeat < 3; ++repeat) {
      EXPECT_EQ(reduced(4, ReduceOp::sum), 7);
      EXPECT_EQ(x[4], own);
      EXPECT_EQ(reduced(4, ReduceOp::sum), 7);
      EXPECT_EQ(reduced(4, ReduceOp::max), 5);
      EXPECT_EQ(reduced(64, ReduceOp::max), 5);  // beyond the first cache line
      EXPECT_EQ(reduced(64, ReduceOp::max), 5);
      EXPECT_EQ(reduced(2, ReduceOp::max), 5);
      EXPECT_EQ(x[2], own);
      for (const int root : {0, 0, 1, 1}) {
        std::ranges::fill(x, own);
        c->broadcast(x.data(), 3, DType::f32, root)->wait();
        EXPECT_EQ(x[2], root == 0 ? 2 : 5);
        EXPECT_EQ(x[3], own);
      }
    }
  });
}

// A rank that repeats a call may publish its description only after its peers have seen the call.
// Rank 1 then makes a call that differs in one respect from the one both ranks have repeated.
TEST(Native, RepeatedCallsThatMeetADifferentOneAreNamed) {
  struct Another {
    std::int64_t count;
    DType dtype;
    ReduceOp op;
    const char* text;
  };
  for (const Another& another : {Another{2, DType::f32, ReduceOp::sum, "of 2 f32, sum"},
                                 Another{1 << 20, DType::f32, ReduceOp::sum, "of 1048576 f32, sum"},
                                 Another{1, DType::f32, ReduceOp::max, "of 1 f32, max"},
                                 Another{1, DType::i32, ReduceOp::sum, "of 1 i32, sum"}}) {
    std::array<std::string, 2> texts;
    shoal::test::run_thread_ranks(2, [&](const World& world, Store& store) {
      const auto c = make_communicator(world, store, options_for(""));
      std::vector<float> x(1 << 20, 1.0f);
      const auto call = [&](const Another& what) {
        c->all_reduce(x.data(), x.data(), what.count, what.dtype, what.op)->wait();
      };
      const Another repeated{1, DType::f32, ReduceOp::sum, ""};
      for (int repeat = 0; repeat < 5; ++repeat) call(repeated);
      try {
        call(world.rank == 0 ? repeated : another);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::mismatch);
        texts[static_cast<std::size_t>(world.rank)] = error.what();
      }
      EXPECT_EQ(x[1], 1);
    });
    for (const std::string& text : texts)
      EXPECT_THAT(text, AllOf(HasSubstr("rank 0 called all_reduce of 1 f32, sum"),
                              HasSubstr(fmt::format("rank 1 called all_reduce {}", another.text))));
  }
}

TEST(Native, RefusesBadArgumentsBeforeAnythingMoves) {
  shoal::test::run_thread_ranks(2, [](const World& world, Store& store) {
    const auto c = make_communicator(world, store, options_for(""));
    std::vector<float> x(100);
    const auto sum = ReduceOp::sum;
    EXPECT_THAT(error_text([&] { c->all_reduce(x.data(), x.data(), -1, DType::f32, sum); }),
                HasSubstr("all_reduce: count -1"));
    EXPECT_THAT(error_text([&] { c->all_reduce(nullptr, x.data(), 1, DType::f32, sum); }),
                HasSubstr("null pointer"));
    EXPECT_THAT(
        error_text([&] { c->all_reduce(x.data(), x.data(), 1, DType::i32, ReduceOp::avg); }),
        HasSubstr("avg of i32"));
    EXPECT_THAT(error_text([&] { c->all_reduce(x.data(), x.data() + 1, 8, DType::f32, sum); }),
                HasSubstr("overlap"));
    EXPECT_THAT(error_text([&] { c->broadcast(x.data(), 1, DType::f32, 2); }), HasSubstr("root 2"));
    c->barrier()->wait();  // none of the refused calls counted
  });
}

TEST(MakeCommunicator, ErrorsListTheBackendsAndAlgorithms) {
  const auto store = make_hash_store();
  const auto text_with = [&](const CommunicatorOptions& options) {
    return error_text([&] { make_communicator(shoal::test::local_world(0, 1), *store, options); });
  };
  CommunicatorOptions options;
  options.backend = "gloo";
  EXPECT_EQ(text_with(options),
            "'gloo' is not a collective backend; use auto, native, mpi or nccl");
  options.backend = "native";
  options.algorithm = "trees";
  EXPECT_THAT(text_with(options), HasSubstr("did you mean tree? There are direct, ring"));
}

// A single rank's operations are copies, whatever backend was requested. backend() must report
// native.
TEST(MakeCommunicator, ASingleRankTakesEveryBackendNameAndIsNative) {
  const auto store = make_hash_store();
  for (const std::string backend : {"native", "mpi", "nccl"}) {
    // With a GPU, the nccl backend really is NCCL, for device memory.
    if (backend == "nccl" && device_backend(DeviceType::cuda).count() > 0) continue;
    CommunicatorOptions options;
    options.backend = backend;
    const auto communicator = make_communicator(shoal::test::local_world(0, 1), *store, options);
    EXPECT_EQ(communicator->backend(), "native");
    EXPECT_THAT(test::check_everything(*communicator, {0, 1, 17}), IsEmpty());
  }
}

}  // namespace
}  // namespace shoal::collectives
