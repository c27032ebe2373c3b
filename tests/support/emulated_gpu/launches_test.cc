// Checks how many kernels launch to update a model's parameters. Each launch costs microseconds,
// however little it computes.
#include <memory>
#include <vector>

#include "support/emulated_gpu/block.h"
#include <gtest/gtest.h>

#include "shoal/kernels/kernels.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::emulated_gpu {
namespace {

using kernels::AdamWArgs;

// As many tensors as GPT-2 124M has, but small.
constexpr std::size_t kTensors = 148;

class Launches : public ::testing::Test {
 protected:
  Launches() {
    const auto zeros = [this](std::int64_t count, DType dtype = DType::f32) {
      return Tensor::zeros({count}, dtype, *memory_, MemoryTag::workspace, kernels_->stream());
    };
    state_ = zeros(sizeof(kernels::StepState), DType::u8);
    squares_ = zeros(2 * kTensors, DType::f64);
    auto* const state = static_cast<kernels::StepState*>(state_.view().data);
    kernels_->optimizer().set_step(state, {.learning_rate = 0.1f}, {});
    const Tensor sum = zeros(1, DType::f64), norm = zeros(1, DType::f64);
    kernels_->optimizer().begin_update({.sum_of_squares = sum, .norm = norm.view(), .state = state},
                                       {});
    for (std::size_t i = 0; i < kTensors; ++i) {
      for (int each = 0; each < 4; ++each) memory_of_.push_back(zeros(5));
      AdamWArgs args;
      args.master = memory_of_[4 * i].view();
      args.first_moment = memory_of_[4 * i + 1].view();
      args.second_moment = memory_of_[4 * i + 2].view();
      args.gradient = memory_of_[4 * i + 3];
      args.state = state;
      tensors_.push_back(args);
    }
  }
  template <class F>
  static std::uint64_t count(const F& work) {
    const std::uint64_t before = launches();
    work();
    return launches() - before;
  }

  std::unique_ptr<MemoryResource> memory_ = make_device_memory(Device::cuda(0));
  std::unique_ptr<kernels::Kernels> kernels_ = kernels::make_cuda_kernels(
      {.device = Device::cuda(0), .memory = memory_.get(), .cache_directory = {}});
  Tensor state_, squares_;
  std::vector<Tensor> memory_of_;
  std::vector<AdamWArgs> tensors_;
};

TEST_F(Launches, AdamWTakesOne) {
  EXPECT_EQ(count([&] { kernels_->optimizer().adamw_many(tensors_, {}); }), 1u);
}

TEST_F(Launches, LionTakesOne) {
  EXPECT_EQ(count([&] { kernels_->optimizer().lion_many(tensors_, {}); }), 1u);
}

// One for the moments with the sums of chunks, one for the sums of tensors, one for the update.
TEST_F(Launches, LambTakesThree) {
  const kernels::LambArgs lamb{tensors_, squares_.view()};
  EXPECT_EQ(count([&] {
              kernels_->optimizer().lamb_moments(lamb, {});
              kernels_->optimizer().lamb_apply(lamb, {});
            }),
            3u);
}

}  // namespace
}  // namespace shoal::emulated_gpu
