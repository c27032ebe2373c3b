#include "shoal/runtime/device/device.h"

#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

TEST(Device, Names) {
  EXPECT_EQ(to_string(Device::cpu()), "cpu");
  EXPECT_EQ(to_string(Device::cuda(3)), "cuda:3");
  EXPECT_EQ(Device::cuda(1), Device::cuda(1));
  EXPECT_FALSE(Device::cuda(0) == Device::cpu());
}

TEST(HostDevice, CopiesFillsAndIsAlwaysDone) {
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
  Event start(Device::cpu()), stop(Device::cpu());
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

TEST(CudaDevice, WithoutItSaysWhichFlag) {
  DeviceBackend& cuda = device_backend(DeviceType::cuda);
  if (cuda.count() > 0) GTEST_SKIP() << "there is a CUDA device here";
  try {
    OwnedStream stream(Device::cuda(0));
    FAIL() << "made a stream on a device that is not there";
  } catch (const Error& error) {
    EXPECT_THAT(
        std::string(error.what()),
        ::testing::AnyOf(HasSubstr("SHOAL_CUDA=ON"), HasSubstr("device"), HasSubstr("driver")));
  }
}

}  // namespace
}  // namespace shoal
