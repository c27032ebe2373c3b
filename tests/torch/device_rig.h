// Ranks with an emulated GPU and a process group each.
#pragma once

#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/ranks.h"
#include "torch/emulated_cuda.h"
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "shoal/runtime/rendezvous/store.h"
#include "shoal/torch/process_group.h"

namespace shoal::pytorch {

[[maybe_unused]] const int kChosen = setenv("SHOAL_EMULATED_GPUS", "4", 0);

constexpr std::int64_t kElements = 1000;

inline c10::intrusive_ptr<ProcessGroupShoal> make_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, double seconds) {
  const auto timeout = std::chrono::milliseconds(std::llround(1e3 * seconds));
  return c10::make_intrusive<ProcessGroupShoal>(
      store, rank, size, c10::make_intrusive<c10d::Backend::Options>("shoal", timeout));
}

// A rank with its own GPU and group.
struct Rank {
  Rank(const World& world, Store& meetings, const c10::intrusive_ptr<c10d::Store>& store,
       double seconds)
      : rank(world.rank),
        size(world.size),
        device(c10::kCUDA, static_cast<c10::DeviceIndex>(rank)),
        group(make_group(store, rank, size, seconds)),
        meetings_(meetings) {}

  at::TensorOptions floats() const { return at::TensorOptions(at::kFloat).device(device); }
  at::Tensor full(double value, at::IntArrayRef sizes = {kElements}) const {
    return at::full(sizes, value, at::TensorOptions(at::kFloat)).to(device);
  }
  // A tensor that is -1 until the device writes `value` to every element, as late as it may.
  at::Tensor late(double value, at::IntArrayRef sizes = {kElements}) {
    const at::Tensor tensor = full(-1, sizes);
    sources_.push_back(full(value, sizes));
    test::queue_copy(tensor, sources_.back());
    return tensor;
  }
  Tensors outputs(int count) const {
    Tensors made;
    for (int i = 0; i < count; ++i) made.push_back(full(-1));
    return made;
  }
  c10::Stream new_stream() const {
    return c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device);
  }
  void meet(const std::string& where) const {
    barrier(meetings_, where, size, Deadline::in_seconds(60));
  }
  int total() const { return size * (size + 1) / 2; }  // sum of 1 to size

  int rank, size;
  c10::Device device;
  c10::intrusive_ptr<ProcessGroupShoal> group;

 private:
  Store& meetings_;
  Tensors sources_;  // outlive the copies from them
};

// Checks each element, read in the order of the current stream.
inline void expect(const at::Tensor& tensor, double value, const char* what) {
  const at::Tensor behind = at::empty_like(tensor);
  test::queue_copy(behind, tensor);
  const at::Tensor here = behind.cpu();
  EXPECT_TRUE(here.eq(value).all().item<bool>())
      << what << ": " << here.flatten().narrow(0, 0, std::min<std::int64_t>(4, here.numel()))
      << "... and not " << value;
}

inline void wait(const WorkResult& work) { work->wait(kNoTimeout); }

template <typename Body>
std::string problem_of(Body&& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

struct Case {
  const char* backend;
  int ranks;
};

class OnDevices : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { setenv("SHOAL_BACKEND", GetParam().backend, 1); }
  static bool is_nccl() { return std::string_view(GetParam().backend) == "nccl"; }
  static void run(const std::function<void(Rank&)>& body, double seconds = 60) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    test::run_thread_ranks(GetParam().ranks, [&](const World& world, Store& meetings) {
      Rank rank(world, meetings, store, seconds);
      body(rank);
      rank.meet("end");
    });
  }
};
inline std::string name_of(const ::testing::TestParamInfo<Case>& tested) {
  return tested.param.backend + std::to_string(tested.param.ranks);
}

}  // namespace shoal::pytorch
