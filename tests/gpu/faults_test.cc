// Errors on a GPU must be reported: by a later call if a kernel found the error, and at once if the
// host knows it.
#include <limits>

#include "gpu.h"
#include <gmock/gmock.h>

#include "shoal/kernels/kernels.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GpuFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    SHOAL_NEEDS_GPU();
    memory_ = make_device_memory(Device::cuda(0));
    pool_ = std::make_unique<PoolMemory>(*memory_);
    kernels_ = make_cuda_kernels();
  }
  Tensor ids(const std::vector<std::int32_t>& values) {
    Tensor made = Tensor::empty({static_cast<std::int64_t>(values.size())}, DType::i32, *pool_,
                                MemoryTag::data);
    backend_.copy(made.view().data, values.data(), made.bytes(), kernels_->stream());
    synchronise();
    return made;
  }
  Tensor filled(const Shape& shape, float value) {
    Tensor made = Tensor::empty(shape, DType::f32, *pool_, MemoryTag::data);
    kernels_->elementwise().fill(made.view(), value, {});
    return made;
  }
  float first(const Tensor& tensor) {
    float value = 0;
    backend_.copy(&value, tensor.const_view().data, sizeof value, kernels_->stream());
    synchronise();
    return value;
  }
  void synchronise() { backend_.synchronize(kernels_->stream()); }
  static std::string error_of(const std::function<void()>& run) {
    try {
      run();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  DeviceBackend& backend_ = device_backend(DeviceType::cuda);
  std::unique_ptr<MemoryResource> memory_;
  std::unique_ptr<PoolMemory> pool_;
  std::unique_ptr<Kernels> kernels_;
};

// Counted as the device's backend counts its own calls, so that a step's statistics include them.
TEST_F(GpuFaults, WaitsAndCopiesOfKernelsAreCounted) {
  const Tensor values = filled({7}, 1);
  synchronise();
  DeviceStatistics expected = backend_.statistics();
  EXPECT_FALSE(kernels_->optimizer().has_non_finite(values.const_view(), {}));
  ++expected.synchronizations;
  ++expected.blocking_copies;  // of the result
  const DeviceStatistics asked = backend_.statistics();
  EXPECT_EQ(asked.synchronizations, expected.synchronizations);
  EXPECT_EQ(asked.blocking_copies, expected.blocking_copies);
  std::vector<float> host(7);
  kernels_->elementwise().cast(values.const_view(),
                               View{host.data(), Shape{7}, DType::f32, Device::cpu()}, {});
  EXPECT_EQ(backend_.statistics().blocking_copies, expected.blocking_copies + 1);
  synchronise();
  // Kernels allocate one record, in which they report errors, and wait when they are destroyed.
  const DeviceStatistics before = backend_.statistics();
  make_cuda_kernels().reset();
  EXPECT_EQ(backend_.statistics().allocations, before.allocations + 1);
  EXPECT_EQ(backend_.statistics().deallocations, before.deallocations + 1);
  EXPECT_EQ(backend_.statistics().synchronizations, before.synchronizations + 2)
      << "one wait for its stream, and one before the stream is destroyed";
}

TEST_F(GpuFaults, AnIdOutsideTheTableIsNamedByALaterCall) {
  const Tensor table = filled({5, 4}, 1), wrong = ids({0, 1, 5, 2}), right = ids({0, 1, 4, 2}),
               out = filled({4, 4}, 0);
  kernels_->embedding().embedding(wrong.const_view(), table.const_view(), out.view(), false, {});
  synchronise();
  EXPECT_THAT(error_of([&] { kernels_->elementwise().fill(out.view(), 0, {}); }),
              AllOf(HasSubstr("id"), HasSubstr("5"), HasSubstr("2")));
  // Reported once; later calls work.
  kernels_->embedding().embedding(right.const_view(), table.const_view(), out.view(), false, {});
  EXPECT_EQ(first(out), 1);
  kernels_->elementwise().fill(out.view(), 3, {});
  EXPECT_EQ(first(out), 3);
}

TEST_F(GpuFaults, ANegativeIdOfTheBackwardIsNamed) {
  const Tensor table = filled({5, 4}, 0), wrong = ids({0, -7}), dout = filled({2, 4}, 1);
  kernels_->embedding().embedding_backward(wrong.const_view(), dout.const_view(), table.view(), {});
  synchronise();
  EXPECT_THAT(error_of([&] { kernels_->elementwise().fill(dout.view(), 0, {}); }), HasSubstr("-7"));
}

TEST_F(GpuFaults, ATargetOutsideTheVocabularyIsNamedByALaterCall) {
  const Tensor x = filled({3, 8}, 1), weight = filled({5, 8}, 1), targets = ids({0, 4, 9}),
               loss = filled({1}, 0);
  LinearCrossEntropyArgs args;
  args.x = x.const_view();
  args.weight = weight.const_view();
  args.targets = targets.const_view();
  args.loss_sum = loss.view();
  kernels_->loss().linear_cross_entropy(args, {});
  synchronise();
  EXPECT_THAT(error_of([&] { kernels_->elementwise().fill(loss.view(), 0, {}); }),
              AllOf(HasSubstr("target"), HasSubstr("9")));
}

TEST_F(GpuFaults, OutOfMemoryIsOneLineThatNamesTheRequest) {
  CountingMemory counted(*pool_);
  const Tensor held = Tensor::empty({1 << 20}, DType::f32, counted, MemoryTag::parameters);
  const std::string line = error_of(
      [&] { Tensor::empty({std::int64_t{1} << 40}, DType::f32, counted, MemoryTag::activations); });
  EXPECT_THAT(line, AllOf(HasSubstr("activations"), HasSubstr("parameters"), HasSubstr("4.0 MiB")));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  // A smaller allocation then succeeds.
  EXPECT_NO_THROW(Tensor::empty({1 << 20}, DType::f32, counted, MemoryTag::activations));
}

TEST(GpuDevices, AMissingDeviceIsNamed) {
  SHOAL_NEEDS_GPU();
  try {
    make_cuda_kernels({.device = Device::cuda(99), .memory = nullptr, .cache_directory = {}});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), HasSubstr("cuda:99"));
  }
}

}  // namespace
}  // namespace shoal::kernels
