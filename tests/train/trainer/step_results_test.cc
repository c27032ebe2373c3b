// Steps whose results are read later, and ranks that are lost meanwhile. Over NCCL the sum over
// ranks is only in the stream, and waiting for the stream has no deadline.
#include "shoal/train/trainer/step_results.h"

#include <atomic>
#include <cstdlib>
#include <list>
#include <mutex>

#include "support/calls.h"
#include "support/error_text.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"
#include "train/trainer/gpu_fixture.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/collectives/watch.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/parallel/data/bucket_reduction.h"

namespace shoal {
namespace {

using collectives::Communicator;
using collectives::WorkPtr;
using test::error_text;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Each rank has its own GPU unless the environment says otherwise.
[[maybe_unused]] const int kChosen = setenv("SHOAL_EMULATED_GPUS", "2", 0);
constexpr double kDeadline = 2;  // seconds

// --- sums that the host waits for ----------------------------------------------------------------

class Noted final : public collectives::Work {
 public:
  Noted(int step, std::vector<int>& waited) : step_(step), waited_(waited) {}
  bool test() override { return false; }
  void wait(Deadline) override { waited_.push_back(step_); }
  double default_deadline_seconds() const override { return 1; }

 private:
  int step_;
  std::vector<int>& waited_;
};

TEST(StepResults, AreAtMostFourAheadOfTheRanks) {
  const auto store = make_hash_store();
  const auto one = collectives::make_communicator({}, *store);
  const auto host = make_host_memory();
  const Tensor norm = Tensor::zeros({1}, DType::f64, *host, MemoryTag::data);
  std::vector<int> waited;
  StepResults late({}, *one);
  ASSERT_EQ(StepResults::kAhead, 4U);
  for (int step = 0; step < 7; ++step) {
    norm.data<double>()[0] = step;
    late.note({}, norm, std::make_unique<Noted>(step, waited));
    EXPECT_EQ(std::ssize(waited), std::max(0, step - 3)) << "after step " << step;
  }
  EXPECT_THAT(waited, ElementsAre(0, 1, 2));
  EXPECT_EQ(late.last().outcome.gradient_norm, 6);
  EXPECT_THAT(waited, ElementsAre(0, 1, 2, 3, 4, 5, 6)) << "each once, in order";
  EXPECT_EQ(late.collect().size(), 6U);
  late.note({}, norm);
  late.wait_for_ranks();
  EXPECT_EQ(waited.size(), 7U) << "a step of one rank has no sum";
}

// --- over NCCL -----------------------------------------------------------------------------------

// A rank with its own GPU. Its sums begin on its stream.
struct Rank {
  Rank(const World& world, Store& store) : room(Device::cuda(world.rank)) {
    collectives::CommunicatorOptions options = test::with_deadline(kDeadline);
    options.backend = "nccl";
    options.stream = room.kernels->stream();
    communicator = collectives::make_communicator(world, store, options);
    norm = Tensor::zeros({1}, DType::f64, room.memory, MemoryTag::workspace, options.stream);
    (void)communicator->host();
  }
  WorkPtr queue_sum() const {
    return parallel::sum_squares_in_place(*communicator, room.kernels->reduction(), norm, true,
                                          room.kernels->stream());
  }
  test::GpuFixture room;
  std::unique_ptr<Communicator> communicator;
  Tensor norm;
};

// Rank 1 takes part in `with` sums, and is then lost for longer than rank 0's deadline. Returns the
// text of rank 0's error.
std::string with_a_lost_rank(int with, const std::function<void(Rank&)>& body) {
  std::atomic<bool> over{false};
  std::string text;
  test::run_thread_ranks(2, [&](const World& world, Store& store) {
    Rank rank(world, store);
    if (world.rank == 0) {
      text = error_text([&] { body(rank); });
      over = true;
      return;
    }
    for (int i = 0; i < with; ++i) (void)rank.queue_sum();
    device_backend(DeviceType::cuda).synchronize(rank.room.kernels->stream());
    while (!over) test::sleep_seconds(0.01);
  });
  return text;
}

TEST(StepResultsOverNccl, ALostRankEndsTheFifthStepByItsDeadline) {
  int noted = 0;
  EXPECT_THAT(with_a_lost_rank(2,
                               [&](Rank& rank) {
                                 StepResults late(rank.room.kernels->stream(), *rank.communicator);
                                 for (; noted < 20; ++noted)
                                   late.note({}, rank.norm, rank.queue_sum());
                               }),
              AllOf(HasSubstr("all_reduce"), HasSubstr("did not finish within 2.0 s")));
  EXPECT_EQ(noted, 2 + 4) << "two finished sums and four steps in flight";
}

TEST(StepResultsOverNccl, ReadingAStepWaitsNoLongerThanTheDeadline) {
  EXPECT_THAT(with_a_lost_rank(1,
                               [](Rank& rank) {
                                 StepResults late(rank.room.kernels->stream(), *rank.communicator);
                                 late.note({}, rank.norm, rank.queue_sum());
                                 EXPECT_EQ(late.last().outcome.gradient_norm, 0);
                                 late.note({}, rank.norm, rank.queue_sum());
                                 late.last();
                               }),
              HasSubstr("did not finish within 2.0 s"));
}

// Sharded parameters do this: their values are gathered when the norm is known.
TEST(StepResultsOverNccl, WorkAfterTheLastSumIsWaitedForToo) {
  EXPECT_THAT(with_a_lost_rank(1,
                               [](Rank& rank) {
                                 StepResults late(rank.room.kernels->stream(), *rank.communicator);
                                 WorkPtr last = rank.queue_sum();
                                 (void)rank.queue_sum();
                                 late.note({}, rank.norm, std::move(last));
                                 late.collect();
                               }),
              AllOf(HasSubstr("what was queued before a wait of the host's"),
                    HasSubstr("did not finish within 2.0 s")));
}

// Two ranks, each with a part of each parameter.
class PartsOf final : public nn::UpdateGroup {
 public:
  explicit PartsOf(Rank& rank) : rank_(rank) {}
  void sum_squares_in_place(const Tensor& mine, Stream stream) override {
    (void)parallel::sum_squares_in_place(*rank_.communicator, rank_.room.kernels->reduction(), mine,
                                         true, stream);
  }
  bool has_parts() const override { return true; }
  void before_reading(Stream stream) override { collectives::watch(*rank_.communicator, stream); }

 private:
  Rank& rank_;
};

// With sharded parameters, LAMB reads trust ratios in the middle of a step.
TEST(StepResultsOverNccl, LambsTrustRatiosToo) {
  EXPECT_THAT(with_a_lost_rank(0,
                               [](Rank& rank) {
                                 const Stream stream = rank.room.kernels->stream();
                                 const auto zeros = [&](MemoryTag tag) {
                                   return Tensor::zeros({8}, DType::f32, rank.room.memory, tag,
                                                        stream);
                                 };
                                 nn::Segment part{.name = "w",
                                                  .master = zeros(MemoryTag::parameters),
                                                  .gradient = zeros(MemoryTag::gradients)};
                                 PartsOf parts(rank);
                                 nn::Optimizer lamb(*rank.room.kernels, rank.room.memory, {part},
                                                    nn::lamb(), nullptr, &parts);
                                 nn::StepStateMemory state(*rank.room.kernels, rank.room.memory);
                                 const nn::StepOptions options{.learning_rate = 1};
                                 lamb.set_step(*state, options);
                                 lamb.queue_step(*state, options);
                               }),
              HasSubstr("did not finish within 2.0 s"));
}

// --- the Trainer ---------------------------------------------------------------------------------

// Rank 1 stops responding for a while when the third sample of an evaluation is read.
class Away final : public Dataset {
 public:
  explicit Away(bool leaves) : leaves_(leaves) {}
  std::int64_t size() const override { return 8; }
  Sample get(std::int64_t index) const override {
    if (leaves_ && index == 2) test::sleep_seconds(3 * kDeadline);
    Sample sample;
    for (std::int64_t t = 0; t < 8; ++t)
      sample.input_ids.push_back(static_cast<std::int32_t>((7 * index + t * t) % 59));
    sample.labels = sample.input_ids;
    return sample;
  }

 private:
  bool leaves_;
};

// Tensor-parallel layers sum activations over NCCL in forward, and the host then reads the loss.
std::vector<std::string> errors_of_an_evaluation(bool leaves) {
  const testing::TemporaryDirectory output;
  auto arguments = test::toy_arguments(output.path());
  arguments.max_steps = 2;
  arguments.per_device_train_batch_size = 4;
  arguments.eval_strategy = Interval::steps;
  arguments.eval_steps = 2;
  arguments.per_device_eval_batch_size = 1;
  arguments.mp_parameters = {
      {"ddp", true}, {"tensor_parallel_degree", 2}, {"prescaled_batch", true}};
  const auto store = make_hash_store();
  std::list<test::GpuFixture> rooms;
  std::list<std::unique_ptr<Communicator>> communicators;
  std::mutex mutex;
  test::RunOptions options{.ranks = 2, .samples = 16};
  options.config.num_attention_heads = 4;
  options.prepare = [&](CausalLmTask&, TrainerParts& parts) {
    World world;
    world.rank = world.local_rank = parts.communicator->rank();
    world.size = world.local_size = parts.communicator->size();
    test::GpuFixture* room = nullptr;
    std::unique_ptr<Communicator>* communicator = nullptr;
    {
      const std::lock_guard lock(mutex);
      room = &rooms.emplace_back(Device::cuda(world.rank));
      communicator = &communicators.emplace_back();
    }
    room->give(parts);
    collectives::CommunicatorOptions nccl = test::with_deadline(kDeadline);
    nccl.backend = "nccl";
    nccl.stream = room->kernels->stream();
    *communicator = collectives::make_communicator(world, *store, nccl);
    parts.communicator = communicator->get();
    parts.eval_dataset = std::make_shared<Away>(leaves && world.rank == 1);
  };
  return test::errors_of(arguments, options);
}

TEST(StepResultsOverNccl, AnEvaluationToo) {
  EXPECT_THAT(errors_of_an_evaluation(false), ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_THAT(errors_of_an_evaluation(true).at(0),
              AllOf(HasSubstr("what was queued before a wait of the host's"),
                    HasSubstr("did not finish within 2.0 s")));
}

}  // namespace
}  // namespace shoal
