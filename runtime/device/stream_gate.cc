#include "shoal/runtime/device/stream_gate.h"

#include <atomic>

namespace shoal {
namespace {

class HostGate final : public StreamGate {
 public:
  ~HostGate() override { open(); }
  HostGate() = default;
  HostGate(const HostGate&) = delete;
  HostGate& operator=(const HostGate&) = delete;
  void block_stream(Stream) override { open_.wait(false, std::memory_order_acquire); }
  void open() noexcept override {
    open_.store(true, std::memory_order_release);
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false};
};

}  // namespace

std::unique_ptr<StreamGate> make_stream_gate(Device device) {
  if (device.is_cpu()) return std::make_unique<HostGate>();
  return make_cuda_stream_gate(device);
}

std::string why_no_stream_gates(Device device) {
  return device.is_cpu() ? std::string() : why_no_cuda_stream_gates(device);
}

}  // namespace shoal
