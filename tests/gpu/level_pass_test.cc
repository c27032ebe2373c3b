// One rank's pass through the levels, step by step. The test decides when the rail's operations
// finish and delays the emulated GPU's copies, which shows the order of waits. multirank_test.cc
// tests whole operations between ranks.
#include "shoal/collectives/backend/device/level_pass.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include "gpu/on_gpu.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/backend/device/device_engine.h"
#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/runtime/tensor/dtype.h"

// The argument is a cudaMemcpyKind. Defined only where the GPU is emulated
// (support/emulated_gpu/copies.cc).
extern "C" void shoal_emulated_gpu_before_copies(void (*told)(int)) __attribute__((weak));
extern "C" void shoal_emulated_gpu_hold_copies(bool (*may)(int)) __attribute__((weak));

namespace shoal::collectives {
namespace {

enum Copy : std::uint8_t { to_device = 1, to_host = 2, in_device = 3 };  // cudaMemcpyKind

std::atomic<int> held = 0;  // copies of this kind
std::atomic<int> copies[4];

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// A rail whose operations finish when the test allows it.
class Rail final : public BackendCommunicator {
 public:
  struct Asked {
    Call call;
    bool done = false;
  };
  class RailWork final : public Work {
   public:
    explicit RailWork(Asked& asked) : asked_(asked) {}
    bool test() override { return asked_.done; }
    void wait(Deadline) override {}
    double default_deadline_seconds() const override { return 1; }
    const Asked& asked() const { return asked_; }

   private:
    Asked& asked_;
  };
  Rail(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string backend() const override { return "test"; }
  MemoryResource& memory_resource() override { return *memory_; }
  CommunicatorStatistics statistics() const override { return {}; }
  void abort(std::string_view) override {}

  std::deque<Asked> asked;

 private:
  WorkPtr submit(Call&& call) override {
    return std::make_unique<RailWork>(asked.emplace_back(std::move(call)));
  }
  double deadline_seconds() const override { return 1; }
  std::unique_ptr<Communicator> make_split(const SplitPlan&) override { return nullptr; }

  int rank_, size_;
  std::unique_ptr<MemoryResource> memory_ = make_host_memory();
};

// One rank of host a. Its neighbours' buffers are in the same process. `hosts`: each rank's host as
// one letter, beginning with host a.
class Rig {
 public:
  Rig(Call call, const std::string& hosts, std::int64_t slice_bytes, int rank = 0)
      : call_(std::move(call)), rank_(rank), slice_bytes_(slice_bytes) {
    std::vector<std::string> names;
    for (const char host : hosts) names.emplace_back(1, host);
    where_.emplace(names);
    for (int local = 0; local < where_->local_size(0); ++local) {
      const auto buffer = [&](std::int64_t bytes) {
        return Buffer(*device_memory_, at(std::max<std::int64_t>(bytes, 1)), MemoryTag::gradients);
      };
      send_.push_back(buffer(call_.send_bytes(local, where_->size())));
      recv_.push_back(buffer(call_.recv_bytes(local, where_->size())));
    }
    held = 0;
    for (std::atomic<int>& count : copies) count = 0;
    shoal_emulated_gpu_before_copies([](int kind) { ++copies[kind]; });
    shoal_emulated_gpu_hold_copies([](int kind) { return kind != held; });
  }
  ~Rig() { held = 0; }
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  template <typename T>
  void write_send(int rank, const std::vector<T>& values) {
    cuda_.copy(send_[at(rank)].data(), values.data(), values.size() * sizeof(T), in_.view());
    cuda_.synchronize(in_.view());
  }
  template <typename T>
  std::vector<T> read_recv(int rank) {
    std::vector<T> values(recv_[at(rank)].size() / sizeof(T));
    cuda_.copy(values.data(), recv_[at(rank)].data(), values.size() * sizeof(T), out_.view());
    cuda_.synchronize(out_.view());
    return values;
  }
  void start() {
    device::LevelPlan plan = device::level_plan(call_, rank_, *where_);
    auto sums = device::LevelPass::make_sums(call_, plan, where_->nodes(), slice_bytes_,
                                             *device_memory_, in_.view());
    device::LevelPass::Buffers buffers;
    for (const Buffer& one : send_) buffers.send.push_back(bytes_of(one));
    for (const Buffer& one : recv_) buffers.recv.push_back(bytes_of(one));
    pass.emplace(device::LevelPass::Setup{.in = in_.view(),
                                          .out = out_.view(),
                                          .staging = pinned_.get(),
                                          .folds = call_.reduces() ? &table_->reduction() : nullptr,
                                          .on_host = host_.get(),
                                          .rail = rank_ < where_->rails() ? &rail : nullptr,
                                          .ranks = where_->size(),
                                          .local_rank = rank_,
                                          .slice_bytes = slice_bytes_},
                 call_, std::move(plan), std::move(buffers), std::move(sums));
  }
  // Makes progress more often than an event of the emulated GPU needs.
  void go_on() {
    for (int i = 0; i < 60 && !pass->done(); ++i) (void)pass->progress();
  }
  // Completes the rail's operation as if both hosts had sent this host's data.
  template <typename T>
  void arrive(std::size_t slice) {
    Rail::Asked& one = rail.asked.at(slice);
    const auto* from = static_cast<const T*>(one.call.send);
    auto* to = static_cast<T*>(one.call.recv);
    for (std::int64_t i = 0; i < one.call.count; ++i) to[i] = from[i] + from[i];
    one.done = true;
  }

 private:
  static std::byte* bytes_of(const Buffer& buffer) {
    return static_cast<std::byte*>(const_cast<void*>(buffer.data()));
  }
  Call call_;
  int rank_;
  std::int64_t slice_bytes_;
  std::optional<hierarchical::Placement> where_;
  DeviceBackend& cuda_ = device_backend(DeviceType::cuda);
  OwnedStream in_{Device::cuda(0)}, out_{Device::cuda(0)};
  std::unique_ptr<MemoryResource> device_memory_ = make_device_memory(Device::cuda(0)),
                                  pinned_ = make_pinned_memory();
  std::unique_ptr<kernels::Kernels> table_ = kernels::make_cuda_kernels();
  std::unique_ptr<kernels::ReductionKernels> host_ = make_rank_reduction(false);
  std::vector<Buffer> send_, recv_;

 public:
  Rail rail{0, 2};
  std::optional<device::LevelPass> pass;
};

Call sum_of(std::int64_t count, DType dtype, ReduceOp op = ReduceOp::sum) {
  Call call;
  call.operation = Operation::all_reduce;
  call.dtype = dtype;
  call.op = op;
  call.count = count;
  return call;
}

// Runs `body` in its own process, because a process that has used CUDA cannot fork.
void run_alone(void (*body)()) {
  if (!shoal_emulated_gpu_hold_copies) GTEST_SKIP() << "needs an emulated GPU";
  shoal::test::expect_on_gpu(1, 60, [&](const World&, Store&) {
    body();
    if (::testing::Test::HasFailure()) throw_error(ErrorCode::internal, "see above");
  });
}

constexpr std::int64_t kLength = 1024, kSlices = 5;

// There is one rank on each host, so the share is everything. The last slice is short.
constexpr std::int64_t kCount = kLength * (kSlices - 1) + 7;

TEST(LevelPasses, SendASliceOnceItHasBeenSummed) {
  run_alone([] {
    Rig rig(sum_of(kCount, DType::f32), "ab", kLength * 4);
    std::vector<float> values(kCount);
    for (std::int64_t i = 0; i < kCount; ++i) values[at(i)] = static_cast<float>(i);
    rig.write_send(0, values);
    held = to_host;
    rig.start();
    rig.go_on();
    EXPECT_EQ(rig.rail.asked.size(), 0u) << "a slice was sent before it was written";
    EXPECT_EQ(rig.pass->awaited(), nullptr) << "the pass waits for the device";
    held = 0;
    rig.go_on();
    ASSERT_EQ(rig.rail.asked.size(), 3u) << "all slots are used";
    for (std::int64_t slice = 0; slice < 3; ++slice)
      EXPECT_EQ(std::memcmp(rig.rail.asked[at(slice)].call.send, &values[at(slice * kLength)],
                            kLength * 4),
                0);
  });
}

// Slices do not arrive in the order in which they were sent.
TEST(LevelPasses, CopySlicesToTheDeviceInTurn) {
  run_alone([] {
    Rig rig(sum_of(kCount, DType::f32), "ab", kLength * 4);
    rig.write_send(0, std::vector<float>(kCount, 3.0f));
    rig.start();
    rig.go_on();
    rig.arrive<float>(1);
    rig.go_on();
    EXPECT_EQ(copies[to_device], 0);
    const auto* work = dynamic_cast<Rail::RailWork*>(rig.pass->awaited());
    ASSERT_NE(work, nullptr);
    EXPECT_EQ(&work->asked(), &rig.rail.asked[0]) << "the pass waits for the oldest slice";
    EXPECT_EQ(rig.rail.asked.size(), 3u);
    rig.arrive<float>(0);
    rig.go_on();
    EXPECT_EQ(copies[to_device], 2);
    EXPECT_EQ(rig.rail.asked.size(), 5u) << "two slots became free";
    EXPECT_FALSE(rig.pass->done());
    for (std::size_t slice = 2; slice < 5; ++slice) rig.arrive<float>(slice);
    held = to_device;
    rig.go_on();
    EXPECT_FALSE(rig.pass->done()) << "the last slices are in flight";
    EXPECT_EQ(rig.pass->awaited(), nullptr);
    held = 0;
    rig.go_on();
    EXPECT_TRUE(rig.pass->done());
    EXPECT_EQ(copies[to_device], kSlices);
    EXPECT_EQ(rig.read_recv<float>(0), std::vector<float>(kCount, 6.0f));
  });
}

// 16-bit floats are narrowed into the send slot and copied from there. The slot is free after that
// copy and not when the data arrived.
TEST(LevelPasses, KeepASlotUntilItsSliceIsOnTheDevice) {
  run_alone([] {
    Rig rig(sum_of(kCount, DType::bf16, ReduceOp::avg), "ab", kLength * 4);
    std::vector<bfloat16> values(kCount), want(kCount);
    for (std::int64_t i = 0; i < kCount; ++i) {
      values[at(i)] = bfloat16(static_cast<float>(i % 97));
      want[at(i)] = bfloat16(static_cast<float>(i % 97));  // mean of two equal values
    }
    rig.write_send(0, values);
    held = to_device;
    rig.start();
    rig.go_on();
    for (std::size_t slice = 0; slice < 3; ++slice) rig.arrive<float>(slice);
    rig.go_on();
    EXPECT_EQ(copies[to_host], 3) << "a fourth slice would overwrite the first";
    EXPECT_EQ(rig.rail.asked.size(), 3u);
    held = 0;
    rig.go_on();
    for (std::size_t slice = 3; slice < 5; ++slice) rig.arrive<float>(slice);
    rig.go_on();
    EXPECT_TRUE(rig.pass->done());
    const auto have = rig.read_recv<bfloat16>(0);
    EXPECT_EQ(std::memcmp(have.data(), want.data(), have.size() * 2), 0);
    EXPECT_EQ(rig.pass->staged_bytes(), kCount * 4) << "hosts exchange f32";
  });
}

// Neighbours copy this host's parts from each other. The rail's copy of them is not used, and the
// pass is not done before these copies are.
TEST(LevelPasses, GatherThisHostsPartsFromNeighbours) {
  run_alone([] {
    Call call;
    call.operation = Operation::all_gather;
    call.dtype = DType::i32;
    call.count = 1000;
    Rig rig(call, "aabb", 400 * 4 * 2);  // 400 elements of each host's parts: three slices
    for (int rank = 0; rank < 2; ++rank)
      rig.write_send(rank, std::vector<std::int32_t>(1000, 10 + rank));
    held = in_device;
    rig.start();
    rig.go_on();
    ASSERT_EQ(rig.rail.asked.size(), 3u);
    for (Rail::Asked& one : rig.rail.asked) {
      auto* const parts = static_cast<std::int32_t*>(one.call.recv);
      std::fill_n(parts, one.call.count, -1);  // differs from the result
      std::fill_n(parts + one.call.count, one.call.count, 12);
      one.done = true;
    }
    rig.go_on();
    EXPECT_FALSE(rig.pass->done()) << "copies from the neighbour are delayed";
    held = 0;
    rig.go_on();
    EXPECT_TRUE(rig.pass->done());
    EXPECT_EQ(copies[to_device], 3);
    const auto all = rig.read_recv<std::int32_t>(0), neighbours = rig.read_recv<std::int32_t>(1);
    for (std::int64_t i = 0; i < 3000; ++i)
      ASSERT_EQ(all[at(i)], i < 2000 ? 10 + i / 1000 : 12) << i;
    for (std::int64_t i = 2000; i < 3000; ++i) ASSERT_EQ(neighbours[at(i)], 12) << i;
  });
}

// A rank without a rail only copies.
TEST(LevelPasses, EndWhenTheirCopiesDo) {
  run_alone([] {
    Call call;
    call.operation = Operation::broadcast;
    call.dtype = DType::i32;
    call.count = 1000;
    call.root = 0;
    Rig rig(call, "aab", 1 << 20, 1);
    rig.write_send(0, std::vector<std::int32_t>(1000, 5));
    held = in_device;
    rig.start();
    rig.go_on();
    EXPECT_FALSE(rig.pass->done());
    held = 0;
    rig.go_on();
    EXPECT_TRUE(rig.pass->done());
    EXPECT_EQ(rig.rail.asked.size(), 0u);
    EXPECT_EQ(rig.read_recv<std::int32_t>(1), std::vector<std::int32_t>(1000, 5));
  });
}

}  // namespace
}  // namespace shoal::collectives
