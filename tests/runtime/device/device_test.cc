#include "shoal/runtime/device/device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/stream_gate.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

TEST(Device, HasNames) {
  EXPECT_EQ(to_string(Device::cpu()), "cpu");
  EXPECT_EQ(to_string(Device::cuda(3)), "cuda:3");
  EXPECT_EQ(Device::cuda(1), Device::cuda(1));
  EXPECT_FALSE(Device::cuda(0) == Device::cpu());
}

TEST(HostDevice, CopiesAndFillsAtOnce) {
  DeviceBackend& host = device_backend(DeviceType::cpu);
  EXPECT_EQ(host.count(), 1);
  EXPECT_THAT(host.describe(Device::cpu()), HasSubstr("cores"));
  std::vector<char> a(17, 'a'), b(17, 'b');
  host.copy(b.data(), a.data(), 17, {});
  EXPECT_EQ(a, b);
  host.fill(b.data(), 7, 16, {});
  EXPECT_EQ(b[15], 7);
  EXPECT_EQ(b[16], 'a');
  host.copy(nullptr, nullptr, 0, {});
  host.fill(nullptr, 0, 0, {});
  host.synchronize(Stream{});
}

TEST(HostDevice, EventsMeasureTime) {
  Event start(Device::cpu(), EventKind::timing), stop(Device::cpu(), EventKind::timing);
  const OwnedStream stream(Device::cpu());
  start.record(stream.view());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  stop.record(stream.view());
  stop.synchronize();
  stop.block_stream(stream.view());
  EXPECT_TRUE(stop.query());
  EXPECT_GE(stop.elapsed_ms_since(start), 19.0);
  Event moved = std::move(stop);
  EXPECT_GE(moved.elapsed_ms_since(start), 19.0);
  start = std::move(moved);
  EXPECT_TRUE(start.query());
}

TEST(HostDevice, ThereIsOneAndItsPinnedMemoryIsPlain) {
  DeviceBackend& host = device_backend(DeviceType::cpu);
  host.check_available(Device::cpu());
  EXPECT_THROW(host.check_available({DeviceType::cpu, 1}), Error);
  EXPECT_EQ(host.statistics(), DeviceStatistics{});
  void* pointer = host.allocate_pinned(100);
  host.fill(pointer, 1, 100, {});
  host.deallocate_pinned(pointer);
}

TEST(CudaDevice, MissingDeviceIsNamedWithARemedy) {
  DeviceBackend& cuda = device_backend(DeviceType::cuda);
  try {
    cuda.check_available(Device::cuda(cuda.count()));
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_FALSE(error.remedy().empty());
  }
}

class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_.count() == 0) GTEST_SKIP() << "no CUDA device";
    cuda_.check_available(device_);
  }
  DeviceBackend& cuda_ = device_backend(DeviceType::cuda);
  const Device device_ = Device::cuda(0);
};

TEST(StreamGate, WorkOnAHostStreamWaitsInItsThread) {
  EXPECT_EQ(why_no_stream_gates(Device::cpu()), "");
  const auto gate = make_stream_gate(Device::cpu());
  std::atomic<bool> passed{false};
  std::thread thread([&] {
    gate->block_stream({});
    passed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(passed);
  gate->open();
  thread.join();
  gate->block_stream({});
}

TEST_F(OnCuda, AGateBlocksItsStreamUntilItIsOpened) {
  if (const std::string why = why_no_stream_gates(device_); !why.empty()) GTEST_SKIP() << why;
  const OwnedStream stream(device_), other(device_);
  Event reached(device_), passed(device_);
  auto* host = static_cast<unsigned char*>(cuda_.allocate_pinned(2));
  std::fill_n(host, 2, static_cast<unsigned char>(0));
  // Gate words are reused. The second gate's stream reaches the first one late and still passes.
  for (int turn = 0; turn < 3; ++turn) {
    auto gate = make_stream_gate(device_);
    reached.record(stream.view());
    const DeviceStatistics before = cuda_.statistics();
    gate->block_stream(stream.view());
    cuda_.fill(host, turn + 1, 1, stream.view());
    passed.record(stream.view());
    EXPECT_EQ(cuda_.statistics(), before);
    reached.synchronize();
    for (int asked = 0; asked < 5; ++asked) EXPECT_FALSE(passed.query());
    if (turn == 0) {
      gate->open();
      passed.synchronize();
      EXPECT_EQ(host[0], 1);
    }
    gate.reset();
    if (turn == 1) {
      const auto next = make_stream_gate(device_);
      next->block_stream(other.view());
      passed.synchronize();
      EXPECT_EQ(host[0], 2);
    }
  }
  cuda_.synchronize(other.view());
  cuda_.synchronize(stream.view());
  EXPECT_EQ(host[0], 3);
  cuda_.deallocate_pinned(host);
}

TEST_F(OnCuda, WaitingForADeviceCoversAllItsStreams) {
  auto* host = static_cast<unsigned char*>(cuda_.allocate_pinned(1));
  const OwnedStream captured(device_), other(device_);
  *host = 0;
  cuda_.fill(host, 5, 1, other.view());
  const DeviceStatistics before = cuda_.statistics();
  cuda_.wait_for_device(device_);
  EXPECT_EQ(*host, 5);
  EXPECT_EQ(cuda_.statistics().synchronizations, before.synchronizations + 1);
  cuda_.begin_capture(captured.view());
  EXPECT_THROW(cuda_.wait_for_device(device_), Error) << "that would end the capture";
  void* graph = nullptr;
  EXPECT_NO_THROW(graph = cuda_.end_capture(captured.view()));
  cuda_.destroy_graph(graph);
  cuda_.deallocate_pinned(host);
}

// A trial on a missing device neither succeeds nor fails, and must not affect other devices.
TEST_F(OnCuda, AFailedTrialOfGatesIsNotRemembered) {
  if (const std::string why = why_no_stream_gates(device_); !why.empty()) GTEST_SKIP() << why;
  const Device missing = Device::cuda(cuda_.count());
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_THROW((void)why_no_stream_gates(missing), Error) << turn;
    EXPECT_THROW((void)make_stream_gate(missing), Error) << turn;
  }
  EXPECT_EQ(why_no_stream_gates(device_), "");
}

TEST_F(OnCuda, AGateCannotBePartOfAGraph) {
  if (const std::string why = why_no_stream_gates(device_); !why.empty()) GTEST_SKIP() << why;
  const OwnedStream stream(device_);
  const auto gate = make_stream_gate(device_);
  cuda_.begin_capture(stream.view());
  EXPECT_THROW(gate->block_stream(stream.view()), Error);
  cuda_.abandon_capture(stream.view());
}

TEST_F(OnCuda, CopiesFillsAndMeasures) {
  const OwnedStream stream(device_);
  const OwnedStream urgent(device_, StreamPriority::high);
  Event start(device_, EventKind::timing), stop(device_, EventKind::timing), done(device_);
  void* block = cuda_.allocate(device_, 1000, stream.view());
  auto* host = static_cast<unsigned char*>(cuda_.allocate_pinned(1000));
  std::fill_n(host, 1000, static_cast<unsigned char>(9));
  start.record(stream.view());
  cuda_.fill(block, 5, 1000, stream.view());
  done.record(stream.view());
  done.block_stream(urgent.view());
  const DeviceStatistics before = cuda_.statistics();
  cuda_.copy(host, block, 999, urgent.view());
  EXPECT_EQ(cuda_.statistics(), before) << "pinned memory does not block";
  cuda_.synchronize(urgent.view());
  EXPECT_EQ(cuda_.statistics().synchronizations, before.synchronizations + 1);
  stop.record(stream.view());
  stop.synchronize();
  EXPECT_TRUE(stop.query());
  EXPECT_GE(stop.elapsed_ms_since(start), 0.0);
  EXPECT_THROW(done.elapsed_ms_since(start), Error) << "the event was not made for timing";
  EXPECT_EQ(host[998], 5);
  EXPECT_EQ(host[999], 9);
  std::vector<unsigned char> pageable(1000);
  cuda_.copy(pageable.data(), block, 1000, stream.view());
  cuda_.synchronize(stream.view());
  EXPECT_EQ(pageable[999], 5);
  EXPECT_EQ(cuda_.statistics().blocking_copies, before.blocking_copies + 1);
  cuda_.deallocate_pinned(host);
  cuda_.deallocate(device_, block, stream.view());
  const auto info = cuda_.memory_info(device_);
  EXPECT_GT(info.total, info.free);
}

TEST_F(OnCuda, OutOfMemoryIsReportedAndTheDeviceStaysUsable) {
  const OwnedStream stream(device_);
  for (const Stream where : {stream.view(), Stream{device_, nullptr}}) {
    try {
      (void)cuda_.allocate(device_, std::size_t{1} << 46, where);
      FAIL() << "64 TiB were allocated";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    }
    void* block = cuda_.allocate(device_, 1 << 20, where);
    cuda_.fill(block, 1, 1 << 20, where);
    cuda_.deallocate(device_, block, where);
  }
  cuda_.synchronize(stream.view());
}

// In CUDA a wait for the device ends every capture on it, including those of other threads.
TEST_F(OnCuda, FreesDuringACaptureWaitForItsEnd) {
  const OwnedStream captured(device_), other(device_);
  constexpr std::size_t kBytes = 16 << 20;
  void* written = cuda_.allocate(device_, kBytes, captured.view());
  auto* seen = static_cast<unsigned char*>(cuda_.allocate_pinned(1));
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(cuda_.allocate(device_, kBytes, other.view()));
  cuda_.synchronize(other.view());
  for (const bool abandoned : {false, true}) {
    const DeviceStatistics before = cuda_.statistics();
    const std::size_t free = cuda_.memory_info(device_).free;
    cuda_.begin_capture(captured.view());
    cuda_.fill(written, 7, kBytes, captured.view());
    std::thread([&] {
      // The block is freed before the stream has read it.
      cuda_.fill(blocks[0], 3, kBytes, other.view());
      cuda_.copy(seen, blocks[0], 1, other.view());
      cuda_.deallocate(device_, blocks[0], {});
      cuda_.deallocate(device_, blocks[1], captured.view());
      cuda_.deallocate(device_, blocks[2], other.view());  // freed at once, in its stream's order
      // Exhausted memory must not force a wait either.
      EXPECT_THROW((void)cuda_.allocate(device_, std::size_t{1} << 46, other.view()), Error);
    }).join();
    EXPECT_EQ(cuda_.statistics().synchronizations, before.synchronizations);
    if (abandoned) {
      cuda_.abandon_capture(captured.view());
    } else {
      void* graph = nullptr;
      ASSERT_NO_THROW(graph = cuda_.end_capture(captured.view())) << "the capture was broken";
      cuda_.launch_graph(graph, captured.view());
      cuda_.synchronize(captured.view());
      cuda_.destroy_graph(graph);
    }
    EXPECT_EQ(*seen, 3) << "the block was freed before the wait for the device";
    cuda_.synchronize(Stream{device_, nullptr});
    for (void*& block : blocks) block = cuda_.allocate(device_, kBytes, other.view());
    EXPECT_GE(cuda_.memory_info(device_).free + kBytes, free)
        << "the freed memory is available again";
  }
  for (void* const block : blocks) cuda_.deallocate(device_, block, other.view());
  cuda_.deallocate(device_, written, captured.view());
  cuda_.synchronize(captured.view());
  cuda_.deallocate_pinned(seen);
}

TEST(CudaDevice, BuildsWithoutItNameTheFlag) {
  DeviceBackend& cuda = device_backend(DeviceType::cuda);
  if (cuda.count() > 0) GTEST_SKIP() << "there is a CUDA device here";
  try {
    OwnedStream stream(Device::cuda(0));
    FAIL() << "a stream was made on a missing device";
  } catch (const Error& error) {
    EXPECT_THAT(
        std::string(error.what()),
        ::testing::AnyOf(HasSubstr("SHOAL_CUDA=ON"), HasSubstr("device"), HasSubstr("driver")));
  }
}

}  // namespace
}  // namespace shoal
