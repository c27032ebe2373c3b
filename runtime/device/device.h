// Where memory lives and work runs: a device, its streams and its events.
//
// One header for host and CUDA. Host streams run work in the caller, in order, so a host
// Stream costs nothing and every host operation is complete when its call returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace shoal {

enum class DeviceType : std::uint8_t { cpu, cuda };

struct Device {
  DeviceType type = DeviceType::cpu;
  std::int16_t index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index) {
    return {DeviceType::cuda, static_cast<std::int16_t>(index)};
  }
  constexpr bool is_cpu() const { return type == DeviceType::cpu; }
  friend constexpr bool operator==(Device, Device) = default;
};

std::string to_string(Device device);  // "cpu", "cuda:0"

// A view of a stream: device and native handle (null: the host's, or CUDA's default stream).
// On CUDA's default stream copies and fills are done on return: no other stream waits for it.
// Does not own; copy freely. Operations are methods of the device's DeviceBackend.
struct Stream {
  Device device;
  void* handle = nullptr;
};

enum class StreamPriority { normal, high };
// What an event is for: to order work, or also to measure time, which costs each record more.
enum class EventKind { order, timing };

// What was asked of the driver so far that a steady step should not need. Of all devices of a kind.
struct DeviceStatistics {
  std::int64_t synchronizations = 0;  // of a stream, an event or a device
  std::int64_t blocking_copies = 0;   // from or to host memory that is not pinned
  std::int64_t allocations = 0;       // device and pinned memory
  std::int64_t deallocations = 0;
  friend bool operator==(const DeviceStatistics&, const DeviceStatistics&) = default;
};

// What a kind of device can do; the seam behind which CUDA lives. All calls may be made from
// any thread and throw Error (unavailable: built without this device; internal: driver error).
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  virtual int count() const = 0;
  virtual std::string describe(Device device) const = 0;  // name, memory, capability
  // Throws unavailable unless work can run on `device`: says which devices there are, and of a
  // driver that is too old its version and the one that is needed.
  virtual void check_available(Device device) const = 0;
  virtual DeviceStatistics statistics() const { return {}; }
  // Adds what the caller has asked of the driver itself, which no call here offers.
  virtual void count(const DeviceStatistics& /*asked*/) {}

  virtual void* create_stream(Device device, StreamPriority priority) = 0;
  virtual void destroy_stream(Stream stream) noexcept = 0;  // waits for its work
  virtual void synchronize(Stream stream) = 0;              // blocks
  // Blocks until all that is queued on the device is done, on streams that are gone already too.
  // Throws internal while one of its streams is captured, which that would end.
  virtual void wait_for_device(Device) {}

  virtual void* create_event(Device device, EventKind kind) = 0;
  virtual void destroy_event(Device device, void* event) noexcept = 0;
  virtual void record(void* event, Stream stream) = 0;
  virtual bool query(Device device, void* event) = 0;  // true: all work before it is done
  virtual void wait(Stream stream, void* event) = 0;   // later work on `stream` waits; no block
  virtual void synchronize(Device device, void* event) = 0;               // blocks
  virtual double elapsed_ms(Device device, void* start, void* stop) = 0;  // EventKind::timing

  // Any direction between host and this kind of device. Host: done on return.
  virtual void copy(void* destination, const void* source, std::size_t bytes, Stream stream) = 0;
  virtual void fill(void* destination, int byte, std::size_t bytes, Stream stream) = 0;

  // A stream's work as a graph: what is queued between begin_capture() and end_capture() is not run
  // but noted, with its addresses and host values as they are, and launch_graph() runs all of it.
  // Meanwhile nothing may wait for the stream. unavailable where a kind of device has no graphs;
  // end_capture() throws internal where something was queued that cannot be noted, and returns null
  // where nothing was.
  virtual void begin_capture(Stream stream);
  virtual void* end_capture(Stream stream);
  // Also true of a stream that waits for work of a captured one and so joins it.
  virtual bool is_captured(Stream) const { return false; }
  virtual void abandon_capture(Stream) noexcept {}  // after a failure: what was noted is lost
  virtual void launch_graph(void* graph, Stream stream);
  virtual void destroy_graph(void*) noexcept {}

  // Memory of `device`, aligned to 64 bytes (host) or 256 (CUDA), stream-ordered; bytes > 0. A
  // stream without handle says nothing of who uses the memory: then any stream may at once, and
  // deallocate() waits for the whole device; while a step is captured there, it does so at its end.
  // Used by runtime/memory alone. Both ask the driver: a steady step has a pool above it.
  virtual void* allocate(Device device, std::size_t bytes, Stream stream) = 0;
  virtual void deallocate(Device device, void* pointer, Stream stream) noexcept = 0;
  // Bytes of `device` that nobody holds, and all it has; {0, 0}: not known.
  struct Room {
    std::size_t free = 0, total = 0;
  };
  virtual Room room(Device) const { return {}; }
  // Host memory that this kind of device copies from and to without blocking.
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void deallocate_pinned(void* pointer) noexcept = 0;
};

// The backend of a kind of device. Asking for CUDA in a build without it returns a backend
// with count() == 0 whose other calls name the flag: SHOAL_CUDA=ON.
DeviceBackend& device_backend(DeviceType type);

// RAII owner of a stream.
class OwnedStream {
 public:
  explicit OwnedStream(Device device, StreamPriority priority = StreamPriority::normal);
  ~OwnedStream();
  OwnedStream(OwnedStream&& other) noexcept;
  OwnedStream& operator=(OwnedStream&& other) noexcept;
  Stream view() const { return stream_; }

 private:
  Stream stream_;
};

// RAII owner of an event.
class Event {
 public:
  explicit Event(Device device, EventKind kind = EventKind::order);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  void record(Stream stream);
  bool query() const;
  void synchronize() const;                           // blocks the caller
  void block_stream(Stream stream) const;             // later work on `stream` waits for this event
  double elapsed_ms_since(const Event& start) const;  // both of EventKind::timing

 private:
  Device device_;
  void* handle_;
};

}  // namespace shoal
