#include "shoal/torch/device.h"

#include <thread>
#include <utility>

#include <c10/core/StreamGuard.h>
#include <fmt/format.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"

namespace shoal::pytorch {
namespace {

DeviceBackend& cuda() { return device_backend(DeviceType::cuda); }

Device checked(const char* operation, c10::Device device) {
  const auto refuse = [&](const std::string& why, const std::string& remedy) {
    throw Error(ErrorCode::unavailable, fmt::format("{} on {}: {}", operation, device.str(), why),
                remedy);
  };
  if (!device.is_cuda())
    refuse("shoal moves tensors of CPUs and of CUDA devices",
           "copy it to the CPU first, or use that device's own backend");
  const Device ours = Device::cuda(device.index());
  try {
    cuda().check_available(ours);
  } catch (const Error& error) {
    refuse(error.message(),
           "install a shoal that was built with SHOAL_CUDA=ON on a machine with a GPU, or use CPU "
           "tensors or the nccl backend");
  }
  return ours;
}

// A CUDA event recorded after Shoal's calls so far. PyTorch's streams can wait for it.
class CallEvent {
 public:
  explicit CallEvent(Stream calls)
      : device_(calls.device), event_(cuda().create_event(device_, EventKind::order)) {
    cuda().record(event_, calls);
  }
  ~CallEvent() { cuda().destroy_event(device_, event_); }
  CallEvent(const CallEvent&) = delete;
  CallEvent& operator=(const CallEvent&) = delete;
  void* get() const { return event_; }

 private:
  Device device_;
  void* event_;
};

}  // namespace

DeviceStreams::DeviceStreams(const char* operation, c10::Device device)
    : shoals_(checked(operation, device)),
      guard_(device.type()),
      copies_(guard_.getStreamFromGlobalPool(device, true)),
      calls_(shoals_, StreamPriority::high),
      messages_(shoals_, StreamPriority::high) {}

DeviceStreams::~DeviceStreams() { finish(); }

void DeviceStreams::finish() {
  const Deadline deadline = Deadline::in_seconds(deadlines::kInFlightEnds);
  for (drop_ended(); keeps_copies() && !deadline.passed(); drop_ended()) std::this_thread::yield();
  if (!keeps_copies()) return;
  // The device hangs. The memory is leaked, because the device may still use it.
  const std::lock_guard lock(mutex_);
  new auto(std::exchange(running_, {}));  // NOLINT(bugprone-unhandled-exception-at-new)
}

void DeviceStreams::follow_current(const Stream& calls) const {
  c10::Event queued(device().type());
  queued.record(guard_.getStream(device()));
  cuda().wait(calls, queued.eventId());
  if (cuda().is_captured(calls))
    throw Error(ErrorCode::unavailable, "a collective on a stream that is being captured",
                "make collectives outside of torch.cuda.graph()");
}

void DeviceStreams::wait_for_calls(c10::Stream stream) const {
  guard_.block(CallEvent(calls()).get(), stream);
}

void DeviceStreams::current_follows_calls() const { wait_for_calls(guard_.getStream(device())); }

void DeviceStreams::current_follows(const c10::Event& reached) const {
  reached.block(guard_.getStream(device()));
}

DeviceStreams::Reached DeviceStreams::queue(std::function<void()> copy_out, bool behind_calls) {
  if (behind_calls) wait_for_calls(copies_);
  auto reached = std::make_shared<c10::Event>(device().type());
  {
    const c10::StreamGuard on_copies(copies_);
    if (copy_out) copy_out();
    reached->record(copies_);
  }
  if (copy_out) {
    const std::lock_guard lock(mutex_);
    running_.push_back({reached, std::move(copy_out)});
  }
  return reached;
}

bool DeviceStreams::keeps_copies() const {
  const std::lock_guard lock(mutex_);
  return !running_.empty();
}

void DeviceStreams::drop_ended() {
  std::deque<Running> ended;  // destroyed without the lock
  const std::lock_guard lock(mutex_);
  while (!running_.empty() && running_.front().reached->query()) {
    ended.push_back(std::move(running_.front()));
    running_.pop_front();
  }
}

}  // namespace shoal::pytorch
