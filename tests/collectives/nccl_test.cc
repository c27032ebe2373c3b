// The nccl backend on one GPU, as a group of one rank: calls reach NCCL and results come back.
// Skips without a GPU. Tests of several ranks need several GPUs.
#include <vector>

#include "support/ranks.h"
#include <gtest/gtest.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives {
namespace {

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_backend(DeviceType::cuda).count() == 0) GTEST_SKIP() << "no CUDA device";
    CommunicatorOptions options;
    options.backend = "nccl";
    options.deadline_seconds = 60;
    try {
      communicator_ = make_communicator(shoal::test::local_world(0, 1), *store_, options);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unavailable) throw;
      GTEST_SKIP() << error.what();
    }
    send_ = Buffer(communicator_->memory_resource(), kCount * 4, MemoryTag::workspace);
    recv_ = Buffer(communicator_->memory_resource(), kCount * 4, MemoryTag::workspace);
    std::vector<float> values(kCount, 3.0f);
    cuda().copy(send_.data(), values.data(), kCount * 4, stream_);
  }
  static DeviceBackend& cuda() { return device_backend(DeviceType::cuda); }
  // Returns the last element of the result and clears the buffer for the next call.
  float last() {
    std::vector<float> values(kCount);
    cuda().copy(values.data(), recv_.data(), kCount * 4, stream_);
    cuda().fill(recv_.data(), 0, kCount * 4, stream_);
    cuda().synchronize(stream_);
    return values.back();
  }

  static constexpr std::int64_t kCount = 100003;
  std::shared_ptr<Store> store_ = make_hash_store();
  Stream stream_{Device::cuda(0), nullptr};
  std::unique_ptr<Communicator> communicator_;
  Buffer send_, recv_;
};

TEST_F(Nccl, RunsEveryOperation) {
  Communicator& c = *communicator_;
  const void* send = send_.data();
  void* recv = recv_.data();
  const std::vector<std::int64_t> counts{kCount};
  const auto f32 = DType::f32;
  const auto sum = ReduceOp::sum;
  const auto expect = [&](WorkPtr work, float value, const char* what) {
    work->wait();
    EXPECT_EQ(last(), value) << what;
  };
  expect(c.all_reduce(send, recv, kCount, f32, sum, stream_), 3, "all_reduce");
  expect(c.all_reduce(send, recv, kCount, f32, ReduceOp::avg, stream_), 3, "avg");
  expect(c.all_reduce(send, recv, kCount, f32, Reduction::premultiplied_sum(0.5), stream_), 1.5f,
         "premultiplied_sum");
  expect(c.reduce(send, recv, kCount, f32, sum, 0, stream_), 3, "reduce");
  expect(c.reduce_scatter(send, recv, kCount, f32, sum, stream_), 3, "reduce_scatter");
  expect(c.reduce_scatter_v(send, recv, counts, f32, sum, stream_), 3, "reduce_scatter_v");
  expect(c.all_gather(send, recv, kCount, f32, stream_), 3, "all_gather");
  expect(c.all_gather_v(send, recv, counts, f32, stream_), 3, "all_gather_v");
  expect(c.gather(send, recv, kCount, f32, 0, stream_), 3, "gather");
  expect(c.scatter(send, recv, kCount, f32, 0, stream_), 3, "scatter");
  expect(c.all_to_all(send, recv, kCount, f32, stream_), 3, "all_to_all");
  expect(c.all_to_all_v(send, counts, recv, counts, f32, stream_), 3, "all_to_all_v");
  c.begin_group();
  c.all_reduce(send, recv, kCount, f32, ReduceOp::max, stream_);
  c.barrier();
  expect(c.end_group(), 3, "group");
}

TEST_F(Nccl, SplitsAndRefuses) {
  const auto part = communicator_->split(0, 0);
  EXPECT_EQ(part->size(), 1);
  part->barrier()->wait();
  EXPECT_EQ(communicator_->split(-1, 0), nullptr);
  std::vector<float> host(4);
  EXPECT_THROW(communicator_->all_reduce(host.data(), host.data(), 4, DType::f32, ReduceOp::sum),
               Error);  // a host stream
}

TEST_F(Nccl, AnAbortEndsLaterCalls) {
  communicator_->abort("enough");
  EXPECT_THROW(communicator_->barrier()->wait(), Error);
}

}  // namespace
}  // namespace shoal::collectives
