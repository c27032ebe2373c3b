// Captured steps of ranks that share one GPU and whose sums run on the host: the sums separate the
// graphs of a step. The steps are small enough to predict each number.
#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>
#include <vector>

#include "gpu/on_gpu.h"
#include "support/calls.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/capture/staged_inputs.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/parallel/data/reducer.h"
#include "shoal/parallel/replay/replayed_communicator.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kCount = 3000;
constexpr int kParameters = 3, kSteps = 9;

// A rank that is given its gradients. Each parameter is a separate bucket.
class RankOfPieces {
 public:
  RankOfPieces(const World& world, Store& store) : device_(test::device_of(world)) {
    kernels_ =
        kernels::make_cuda_kernels({.device = device_, .memory = &planned_, .cache_directory = {}});
    auto options = test::with_deadline(20);
    options.stream = kernels_->stream();
    communicator_ = collectives::make_communicator(world, store, options);
    for (int i = 0; i < kParameters; ++i)
      parameters_.push_back(
          std::make_unique<nn::Parameter>(fmt::format("p{}", i), Shape{kCount}, nn::Initializer{}));
    std::vector<nn::Parameter*> all;
    for (const auto& parameter : parameters_) all.push_back(parameter.get());
    replayed_ = std::make_unique<parallel::ReplayedCommunicator>(*communicator_);
    reducer_ = std::make_unique<parallel::Reducer>(
        all, *replayed_,
        parallel::ReducerOptions{.bucket_bytes = 4 * kCount, .first_bucket_bytes = 4 * kCount});
    capture_ = std::make_unique<nn::StepCapture>(
        *kernels_, planned_, nn::StepCaptureOptions{.beside = replayed_->memories()});
    staged_ = std::make_unique<nn::StagedInputs>(*kernels_, *source_);
    sums_ = Tensor::empty(reducer_->flat().shape(), DType::f32, *source_, MemoryTag::data,
                          kernels_->stream());
  }

  // Runs a step in which all ranks pass `value`, and returns the sum of each gradient. The host
  // calls `between` after it has submitted the first sum.
  float step(float value, const std::function<void()>& between = [] {}) {
    const auto host = make_host_memory();
    const Tensor given = Tensor::empty({kCount}, DType::f32, *host, MemoryTag::data);
    std::fill_n(given.data<float>(), kCount, value);
    const Tensor gradient = staged_->fill({given}).front();
    between_ = between;
    capture_->run("step", [&, gradient] {
      reducer_->begin_step();
      reducer_->arm();
      for (int i = kParameters - 1; i >= 0; --i) {
        const Buffer block(planned_, block_bytes, MemoryTag::activations, kernels_->stream());
        nn::Parameter& parameter = *parameters_[static_cast<std::size_t>(i)];
        copy(block.data(), gradient.const_view().data);
        parameter.begin_use();
        parameter.accumulate();
        copy(parameter.gradient.view().data, block.data());
        parameter.end_use();
        if (i == kParameters - 1) host_node([this] { between_(); });
      }
      reducer_->finish();
      device_backend(DeviceType::cuda)
          .copy(sums_.view().data, reducer_->flat().const_view().data, sums_.bytes(),
                kernels_->stream());
    });
    std::vector<float> sums(static_cast<std::size_t>(sums_.count()));
    nn::copy_to_host(sums.data(), sums_, kernels_->stream());
    for (std::int64_t i = 0; i < kParameters; ++i)
      for (const std::int64_t at : {std::int64_t{0}, kCount - 1}) {
        const std::int64_t begin = reducer_->plan().offsets[static_cast<std::size_t>(i)];
        if (sums[static_cast<std::size_t>(begin + at)] != sums[0]) return -1;
      }
    return sums[0];
  }
  nn::StepCapture& capture() { return *capture_; }
  collectives::Communicator& communicator() { return *communicator_; }
  std::size_t block_bytes = 4 * kCount;  // memory that a step uses for a while

 private:
  void copy(void* to, const void* from) {
    device_backend(DeviceType::cuda).copy(to, from, 4 * kCount, kernels_->stream());
  }

  const Device device_;
  std::unique_ptr<MemoryResource> source_ = make_device_memory(device_);
  PoolMemory pool_{*source_};
  nn::PlannedMemory planned_{pool_, *source_};
  std::unique_ptr<kernels::Kernels> kernels_;
  std::unique_ptr<collectives::Communicator> communicator_;
  std::unique_ptr<parallel::ReplayedCommunicator> replayed_;
  std::vector<std::unique_ptr<nn::Parameter>> parameters_;
  std::unique_ptr<parallel::Reducer> reducer_;
  std::unique_ptr<nn::StagedInputs> staged_;
  Tensor sums_;
  std::function<void()> between_;
  std::unique_ptr<nn::StepCapture> capture_;
};

TEST(GpuCapture, SumsAreMadeBetweenTheGraphsOfAStep) {
  test::expect_on_gpu(2, 100, [](const World& world, Store& store) {
    RankOfPieces rank(world, store);
    for (int step = 0; step < kSteps; ++step)
      ASSERT_EQ(rank.step(static_cast<float>(10 * step + world.rank)),
                static_cast<float>(20 * step + 1))
          << "step " << step;
    const nn::StepCapture::Statistics statistics = rank.capture().statistics();
    EXPECT_EQ(statistics.replayed, kSteps - 3);
    // The first gradient, no work between its sum and the test's own work, the two other gradients,
    // and the work after all sums have arrived.
    EXPECT_EQ(statistics.pieces, 4);
  });
}

// One rank's steps cannot be captured and the other's are. Both ranks must make the same calls.
TEST(GpuCapture, ARankThatCannotCaptureWorksWithOneThatDoes) {
  test::expect_on_gpu(2, 100, [](const World& world, Store& store) {
    RankOfPieces rank(world, store);
    for (int step = 0; step < kSteps; ++step) {
      rank.block_bytes = world.rank == 1 && step == 3 ? 8 * kCount : 4 * kCount;
      ASSERT_EQ(rank.step(1), 2) << step;
    }
    EXPECT_EQ(rank.capture().statistics().replayed, world.rank == 0 ? kSteps - 3 : 0);
  });
}

TEST(GpuCapture, ARankThatFailsInItsReplayIsNamed) {
  test::expect_on_gpu(2, 100, [](const World& world, Store& store) {
    RankOfPieces rank(world, store);
    for (int step = 0; step < 6; ++step) ASSERT_EQ(rank.step(1), 2);
    std::string said = "no error";
    try {
      rank.step(1, [&] {
        if (world.rank == 0) return;
        rank.communicator().abort("the test's own failure");
        throw Error(ErrorCode::internal, "the test's own failure");
      });
    } catch (const Error& error) {
      said = error.what();
    }
    EXPECT_THAT(said, HasSubstr("the test's own failure"));
    if (world.rank == 0) {
      EXPECT_THAT(said, HasSubstr("rank 1 aborted"));
    }
  });
}

TEST(GpuCapture, ARankThatIsKilledInItsReplayIsNamed) {
  const auto outcomes = test::on_gpu(2, 100, [](const World& world, Store& store) {
    RankOfPieces rank(world, store);
    for (int step = 0; step < 6; ++step) ASSERT_EQ(rank.step(1), 2);
    rank.step(1, [&] {
      if (world.rank == 1) ::raise(SIGKILL);
    });
  });
  if (outcomes.empty()) GTEST_SKIP() << "no GPU";
  EXPECT_FALSE(outcomes[0].running) << "rank 0 hangs";
  EXPECT_THAT(outcomes[0].error, HasSubstr("rank 1"));
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
}

// Exchanges activations as a mesh's layers do, in temporary memory that peers can reach.
class RankOfExchanges {
 public:
  RankOfExchanges(const World& world, Store& store) : device_(test::device_of(world)) {
    kernels_ =
        kernels::make_cuda_kernels({.device = device_, .memory = &planned_, .cache_directory = {}});
    auto options = test::with_deadline(20);
    options.stream = kernels_->stream();
    communicator_ = collectives::make_communicator(world, store, options);
    all_ = std::make_unique<parallel::ReplayedCommunicator>(*communicator_);
    pair_ = all_->split(0, world.rank);
    capture_ = std::make_unique<nn::StepCapture>(
        *kernels_, planned_,
        nn::StepCaptureOptions{.say = [this](const std::string& line) { said += line + "\n"; },
                               .beside = all_->memories()});
    staged_ = std::make_unique<nn::StagedInputs>(*kernels_, *source_);
    for (Tensor* result : {&gathered_, &sums_})
      *result = Tensor::empty({kCount}, DType::f32, *source_, MemoryTag::data, kernels_->stream());
  }

  struct Result {
    float peers = -1, sum = -1;  // the other rank's value, and the sum of both
  };
  Result step(float value, const std::function<void()>& between = [] {}) {
    const auto host = make_host_memory();
    const Tensor given = Tensor::empty({kCount}, DType::f32, *host, MemoryTag::data);
    std::fill_n(given.data<float>(), kCount, value);
    const Tensor input = staged_->fill({given}).front();
    between_ = between;
    capture_->run("step", [this, input] { exchange(input); });
    return {.peers = only(gathered_), .sum = only(sums_)};
  }
  nn::StepCapture& capture() { return *capture_; }
  collectives::Communicator& communicator() { return *pair_; }
  const std::vector<nn::PlannedMemory*>& memories() const { return all_->memories(); }
  bool asks_hosts = false;  // asks in the middle of a step
  std::string said;

 private:
  void exchange(const Tensor& input) {
    const Stream stream = kernels_->stream();
    const int peer = 1 - pair_->rank();
    const Tensor mine = shared(kCount);
    copy(mine.view().data, input);
    {
      const Tensor all = shared(2 * kCount);
      pair_->all_gather(mine.const_view().data, all.view().data, kCount, DType::f32, stream)
          ->block_stream(stream);
      copy(gathered_.view().data, all.narrowed(0, peer * kCount, kCount));
    }
    const Tensor got = shared(kCount);  // reuses the memory of `all`
    pair_->begin_group();
    EXPECT_EQ(pair_->send(mine.const_view().data, kCount, DType::f32, peer, stream), nullptr);
    pair_->recv(got.view().data, kCount, DType::f32, peer, stream);
    pair_->end_group()->block_stream(stream);
    host_node([this] { between_(); });
    if (asks_hosts) all_->host();
    const Tensor sum = shared(kCount);
    copy(sum.view().data, input);
    pair_
        ->all_reduce(sum.const_view().data, sum.view().data, kCount, DType::f32,
                     collectives::ReduceOp::sum, stream)
        ->block_stream(stream);
    copy(sums_.view().data, sum);
    copy(gathered_.view().data, got);
  }
  Tensor shared(std::int64_t count) {
    return Tensor::empty({count}, DType::f32, pair_->memory_resource(), MemoryTag::activations,
                         kernels_->stream());
  }
  void copy(void* to, const Tensor& from) {
    device_backend(DeviceType::cuda)
        .copy(to, from.const_view().data, from.bytes(), kernels_->stream());
  }
  // The value of all elements; -1 if they differ.
  float only(const Tensor& of) const {
    std::vector<float> values(static_cast<std::size_t>(of.count()));
    nn::copy_to_host(values.data(), of, kernels_->stream());
    return std::ranges::all_of(values, [&](float one) { return one == values[0]; }) ? values[0]
                                                                                    : -1;
  }

  const Device device_;
  std::unique_ptr<MemoryResource> source_ = make_device_memory(device_);
  PoolMemory pool_{*source_};
  nn::PlannedMemory planned_{pool_, *source_};
  std::unique_ptr<kernels::Kernels> kernels_;
  std::unique_ptr<collectives::Communicator> communicator_;
  std::unique_ptr<parallel::ReplayedCommunicator> all_;
  std::unique_ptr<collectives::Communicator> pair_;
  std::unique_ptr<nn::StagedInputs> staged_;
  Tensor gathered_, sums_;
  std::function<void()> between_;
  std::unique_ptr<nn::StepCapture> capture_;
};

TEST(GpuCapture, ExchangesAreMadeBetweenTheGraphsOfAStep) {
  test::expect_on_gpu(2, 100, [](const World& world, Store& store) {
    RankOfExchanges rank(world, store);
    for (int step = 0; step < kSteps; ++step) {
      const auto [peers, sum] = rank.step(static_cast<float>(10 * step + world.rank));
      ASSERT_EQ(peers, static_cast<float>(10 * step + 1 - world.rank)) << "step " << step;
      ASSERT_EQ(sum, static_cast<float>(20 * step + 1)) << "step " << step;
    }
    EXPECT_EQ(rank.capture().statistics().replayed, kSteps - 3) << rank.said;
    ASSERT_EQ(rank.memories().size(), 2U);
    EXPECT_EQ(rank.memories().at(0)->arena_bytes(), 0) << "no memory comes from the first arena";
    // The memory for sending, and in turn the memory for gathering and for receiving and summing.
    EXPECT_GE(rank.memories().at(1)->arena_bytes(), 12 * kCount);
    EXPECT_LT(rank.memories().at(1)->arena_bytes(), 13 * kCount);
  });
}

// Values that hosts exchange cannot be part of a graph. All ranks then run such steps without
// capture.
TEST(GpuCapture, StepsInWhichHostsExchangeValuesAreNotCaptured) {
  test::expect_on_gpu(2, 100, [](const World& world, Store& store) {
    RankOfExchanges rank(world, store);
    rank.asks_hosts = true;
    for (int step = 0; step < kSteps; ++step) ASSERT_EQ(rank.step(1).sum, 2) << step;
    EXPECT_EQ(rank.capture().statistics().replayed, 0);
    EXPECT_THAT(rank.said, HasSubstr("run call by call: hosts exchange values in the middle"));
  });
}

TEST(GpuCapture, ARankThatFailsBetweenExchangesOfItsReplayIsNamed) {
  test::expect_on_gpu(2, 100, [](const World& world, Store& store) {
    RankOfExchanges rank(world, store);
    for (int step = 0; step < 6; ++step) ASSERT_EQ(rank.step(1).sum, 2);
    std::string said = "no error";
    try {
      rank.step(1, [&] {
        if (world.rank == 0) return;
        rank.communicator().abort("the test's own failure");
        throw Error(ErrorCode::internal, "the test's own failure");
      });
    } catch (const Error& error) {
      said = error.what();
    }
    EXPECT_THAT(said, HasSubstr("the test's own failure"));
    if (world.rank == 0) {
      EXPECT_THAT(said, HasSubstr("rank 1 aborted"));
    }
  });
}

}  // namespace
}  // namespace shoal
