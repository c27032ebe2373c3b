#include "shoal/runtime/device/device.h"

#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/backends.h"

namespace shoal {

std::string to_string(Device device) {
  return device.is_cpu() ? "cpu" : "cuda:" + std::to_string(device.index);
}

DeviceBackend& device_backend(DeviceType type) {
  static const std::unique_ptr<DeviceBackend> host = make_host_device_backend();
  static const std::unique_ptr<DeviceBackend> cuda = make_cuda_device_backend();
  return type == DeviceType::cpu ? *host : *cuda;
}

namespace {
[[noreturn]] void refuse_graphs() {
  throw Error(ErrorCode::unavailable, "this kind of device has no graphs of a stream's work",
              "run the step without step_capture");
}
}  // namespace

void DeviceBackend::begin_capture(Stream) { refuse_graphs(); }
void* DeviceBackend::end_capture(Stream) { refuse_graphs(); }
void DeviceBackend::launch_graph(void*, Stream) { refuse_graphs(); }

OwnedStream::OwnedStream(Device device, StreamPriority priority)
    : stream_{device, device_backend(device.type).create_stream(device, priority)} {}

OwnedStream::~OwnedStream() {
  if (stream_.handle) device_backend(stream_.device.type).destroy_stream(stream_);
}

OwnedStream::OwnedStream(OwnedStream&& other) noexcept
    : stream_{other.stream_.device, std::exchange(other.stream_.handle, nullptr)} {}

OwnedStream& OwnedStream::operator=(OwnedStream&& other) noexcept {
  std::swap(stream_, other.stream_);
  return *this;
}

Event::Event(Device device, EventKind kind)
    : device_(device), handle_(device_backend(device.type).create_event(device, kind)) {}

Event::~Event() {
  if (handle_) device_backend(device_.type).destroy_event(device_, handle_);
}

Event::Event(Event&& other) noexcept
    : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

void Event::record(Stream stream) { device_backend(device_.type).record(handle_, stream); }
bool Event::query() const { return device_backend(device_.type).query(device_, handle_); }
void Event::synchronize() const { device_backend(device_.type).synchronize(device_, handle_); }
void Event::block_stream(Stream stream) const {
  device_backend(device_.type).wait(stream, handle_);
}
double Event::elapsed_ms_since(const Event& start) const {
  return device_backend(device_.type).elapsed_ms(device_, start.handle_, handle_);
}

}  // namespace shoal
