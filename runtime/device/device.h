// Places where memory lives and work runs: devices, their streams and their events.
//
//   const OwnedStream stream(Device::cuda(0));
//   Event copied(Device::cuda(0));
//   device_backend(DeviceType::cuda).copy(on_device, on_host, bytes, stream.view());
//   copied.record(stream.view());
//   copied.synchronize();  // blocks until the copy is done
//
// A host stream runs work in the caller, at no cost: it is complete when the call returns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace shoal {

enum class DeviceType : std::uint8_t { cpu, cuda };  // cpu: the host

struct Device {  // a kind of device, and an index within that kind
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

// A non-owning view of a stream: device and native handle (null: the host's, or CUDA's default
// stream). On CUDA's default stream, copies and fills are complete on return, since other streams
// do not wait for that stream. Operations are methods of the device's DeviceBackend.
struct Stream {
  Device device;
  void* handle = nullptr;
};

enum class StreamPriority { normal, high };  // high: its work starts first
// Events order work. Timing events also measure time, at a higher cost per record.
enum class EventKind { order, timing };

// Driver calls so far that a steady step should avoid, summed over all devices of a kind.
struct DeviceStatistics {
  std::int64_t synchronizations = 0;  // of a stream, an event or a device
  std::int64_t blocking_copies = 0;   // from or to host memory that is not pinned
  std::int64_t allocations = 0;       // device and pinned memory
  std::int64_t deallocations = 0;
  friend bool operator==(const DeviceStatistics&, const DeviceStatistics&) = default;
};

// Operations of one kind of device; the interface that hides CUDA. Calls are thread-safe. They
// throw unavailable (built without this device) or internal (a driver error).
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  virtual int count() const = 0;
  virtual std::string describe(Device device) const = 0;  // name, memory, capability
  // Throws unavailable, with the devices or the driver's version, unless work can run on `device`.
  virtual void check_available(Device device) const = 0;
  virtual DeviceStatistics statistics() const { return {}; }
  virtual void count(const DeviceStatistics&) {}  // adds driver calls that the caller made directly

  virtual void* create_stream(Device device, StreamPriority priority) = 0;
  virtual void destroy_stream(Stream stream) noexcept = 0;  // waits for the stream's work
  virtual void synchronize(Stream stream) = 0;              // blocks
  // Blocks until all work queued on the device is done, including on destroyed streams. Throws
  // internal while one of its streams is captured, since that would end the capture.
  virtual void wait_for_device(Device) {}

  virtual void* create_event(Device device, EventKind kind) = 0;
  virtual void destroy_event(Device device, void* event) noexcept = 0;
  virtual void record(void* event, Stream stream) = 0;
  virtual bool query(Device device, void* event) = 0;        // true: all work before it is done
  virtual void wait(Stream stream, void* event) = 0;         // later work on `stream` waits
  virtual void synchronize(Device device, void* event) = 0;  // blocks
  virtual double elapsed_ms(Device device, void* start, void* stop) = 0;  // EventKind::timing

  // Copies in any direction between host and this kind of device. Blocks for unpinned host memory.
  virtual void copy(void* destination, const void* source, std::size_t bytes, Stream stream) = 0;
  virtual void fill(void* destination, int byte, std::size_t bytes, Stream stream) = 0;

  // Captures a stream's work as a graph. Work queued between begin_capture() and end_capture() is
  // not run but recorded, with current addresses and host values; launch_graph() runs all of it. No
  // thread may wait for the stream meanwhile. Throws unavailable if the device has no graphs.
  // end_capture() throws internal if work cannot be recorded, and returns null if there was none.
  virtual void begin_capture(Stream stream);
  virtual void* end_capture(Stream stream);
  virtual bool is_captured(Stream) const { return false; }  // also if it waited for a captured one
  virtual void abandon_capture(Stream) noexcept {}  // after a failure; discards the recorded work
  virtual void launch_graph(void* graph, Stream stream);
  virtual void destroy_graph(void*) noexcept {}

  // Memory of `device`, stream-ordered, aligned to 64 bytes (host) or 256 (CUDA); bytes > 0.
  // Without a stream handle, any stream may use the memory at once, and deallocate() waits for the
  // whole device. During a capture on the device, deallocate() returns at once and frees later.
  // Only runtime/memory calls these. Both call the driver, so a steady step needs a pool.
  virtual void* allocate(Device device, std::size_t bytes, Stream stream) = 0;
  virtual void deallocate(Device device, void* pointer, Stream stream) noexcept = 0;
  struct MemoryInfo {  // unused and total bytes of a device; {0, 0}: unknown
    std::size_t free = 0, total = 0;
  };
  virtual MemoryInfo memory_info(Device) const { return {}; }
  // Host memory that this kind of device copies from and to without blocking.
  virtual void* allocate_pinned(std::size_t bytes) = 0;
  virtual void deallocate_pinned(void* pointer) noexcept = 0;
};

// Lives until the process ends. In a build without CUDA, count() is 0, and other calls throw an
// error that names SHOAL_CUDA=ON.
DeviceBackend& device_backend(DeviceType type);

// Owns a stream. The destructor waits for its work.
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

// Owns an event.
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
  double elapsed_ms_since(const Event& start) const;  // both events have EventKind::timing

 private:
  Device device_;
  void* handle_;
};

}  // namespace shoal
