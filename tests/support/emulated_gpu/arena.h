// Where device memory lies: one range of addresses for each device, and one for what other
// processes have opened to us. Nobody may touch them but while an Opened lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace shoal::emulated_gpu {

constexpr std::size_t kPage = 4096;

// Each pattern is a NaN of bf16, f16, f32 and f64, and as an index lies outside everything.
enum class Poison : std::uint16_t {
  fresh = 0x7ff7,    // device memory that nobody has written
  freed = 0x7ffb,    // device memory given back
  pending = 0x7ffd,  // pinned memory that a queued copy will write
  guard = 0x7ffe,    // around allocations
};
void poison(void* begin, std::size_t bytes, Poison pattern);
// Offset of the first byte that is not the pattern; `bytes`: all are.
std::size_t unpoisoned(const void* begin, std::size_t bytes, Poison pattern);

class Arena {
 public:
  static Arena& get();

  std::byte* begin(int device) const { return base_ + static_cast<std::size_t>(device) * span_; }
  // Bytes of addresses for each device: more than its memory, so that holes do not use it up.
  std::size_t span() const { return span_; }
  int file(int device) const { return files_.at(static_cast<std::size_t>(device)); }
  // Whose memory that address is; -1: of no device, or opened from another process.
  int device_of(const void* address) const;
  bool holds(const void* address) const;

  // Fills device memory through its file: opening and closing cost by the page, and pages are there
  // from their first touch on.
  void fill(std::byte* begin, std::size_t bytes, Poison pattern) const;
  // The system takes back what lies behind freed memory, where that is large.
  void release(std::byte* begin, std::size_t bytes) const;
  // Memory of `device` up to `end` is in use from now on.
  void use(int device, std::byte* end);
  // Pages of another process's file, readable and writable by device work; null: refused.
  void* open_window(int file, std::size_t offset, std::size_t bytes);
  void close_window(void* begin);

 private:
  friend class Opened;
  Arena();
  void open();
  void close();
  void allow_all() const;
  void protect(std::byte* begin, std::byte* end, bool allowed) const;

  mutable std::mutex mutex_;
  std::byte* base_ = nullptr;
  std::size_t span_ = 0, windows_ = 0;
  std::vector<int> files_;
  std::vector<std::byte*> used_;  // by device, then of the windows: the end of what may be opened
  std::map<std::byte*, std::size_t> open_windows_;
  int opened_ = 0;
};

// While one lives, device memory can be touched. Cheap where another one lives already.
class Opened {
 public:
  Opened() { Arena::get().open(); }
  ~Opened() { Arena::get().close(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

// While one lives, this thread runs device work: it may make no CUDA call, and what it touches
// wrongly is said to be the device's doing.
class DeviceWork {
 public:
  DeviceWork();
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;
  static bool here();
};

// "byte 12 of allocation 3 of 4096 bytes" for the report of a wrong access; called within a signal
// handler, so it waits for nobody.
std::string describe_address(const void* address);

}  // namespace shoal::emulated_gpu
