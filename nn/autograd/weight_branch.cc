#include "shoal/nn/autograd/weight_branch.h"

#include <utility>

#include "shoal/nn/autograd/context.h"
#include "shoal/nn/autograd/tape.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// Up to this many positions, weight gradients do not fill the GPU. For GPT-2 124M at 1 x 1024, a
// weight gradient has 36 to 144 tiles of 128 x 128; an H100 has 132 multiprocessors.
constexpr std::int64_t kSmallStep = 2048;

}  // namespace

bool wants_weight_branch(std::int64_t positions) {
  const std::string wanted = env::get_string(env::kCaptureBranches);
  if (wanted == "auto") return positions <= kSmallStep;
  SHOAL_CHECK(wanted == "on" || wanted == "off", "{}='{}' is not auto, on or off",
              env::kCaptureBranches.name, wanted);
  return wanted == "on";
}

WeightBranch::WeightBranch(Device device, std::size_t most) : stream_(device), ready_(device) {
  SHOAL_CHECK(most >= 1, "a branch of {} works", most);
  for (std::size_t i = 0; i < most; ++i) works_.push_back({Event(device)});
}

WeightBranch::~WeightBranch() { give_up(); }

void WeightBranch::run(Context& context, std::function<void()> work) {
  const Stream stream = context.stream;
  if (under_way_ == works_.size()) wait_for_oldest(stream);
  ready_.record(stream);
  ready_.block_stream(stream_.view());
  Work& entry = works_[place(under_way_)];
  entry.work = std::move(work);
  ++under_way_;  // before the call: kernels queued before an exception still read the tensors
  context.stream = stream_.view();
  try {
    entry.work();
  } catch (...) {
    context.stream = stream;
    throw;
  }
  context.stream = stream;
  entry.done.record(stream_.view());
}

void WeightBranch::wait_for_oldest(Stream stream) {
  Work& entry = works_[oldest_];
  entry.done.block_stream(stream);
  entry.work = {};  // only now, because `stream` may reuse the memory
  oldest_ = place(1);
  --under_way_;
}

void WeightBranch::join(const Context& context) {
  if (under_way_ == 0) return;
  works_[place(under_way_ - 1)].done.block_stream(context.stream);  // implies all earlier ones
  for (; under_way_ > 0; --under_way_) works_[place(under_way_ - 1)].work = {};
}

void WeightBranch::give_up() noexcept {
  const Stream stream = stream_.view();
  DeviceBackend& backend = device_backend(stream.device.type);
  try {
    if (under_way_ > 0 && !backend.is_captured(stream)) backend.synchronize(stream);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device is lost, which is reported elsewhere
  }
  for (; under_way_ > 0; --under_way_) works_[place(under_way_ - 1)].work = {};
}

}  // namespace shoal::nn
