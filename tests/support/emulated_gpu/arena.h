// The addresses of device memory: one range for each device, and one for memory that other
// processes have shared with this one. A thread may access them only while an Opened lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace shoal::emulated_gpu {

constexpr std::size_t kPage = 4096;

// Each pattern is a NaN in bf16, f16, f32 and f64. As an index it is out of range everywhere.
enum class Poison : std::uint16_t {
  fresh = 0x7ff7,    // device memory that has not been written
  freed = 0x7ffb,    // freed device memory
  pending = 0x7ffd,  // pinned memory that a queued copy will write
  guard = 0x7ffe,    // the bytes around allocations
};
void poison(void* begin, std::size_t bytes, Poison pattern);
// Returns the offset of the first byte that differs from the pattern, or `bytes` if none does.
std::size_t unpoisoned(const void* begin, std::size_t bytes, Poison pattern);

class Arena {
 public:
  static Arena& get();

  std::byte* begin(int device) const { return base_ + static_cast<std::size_t>(device) * span_; }
  // Bytes of addresses for each device. They exceed its memory, so that holes do not exhaust them.
  std::size_t span() const { return span_; }
  int file(int device) const { return files_.at(static_cast<std::size_t>(device)); }
  // The device that owns an address; -1: no device, or memory of another process.
  int device_of(const void* address) const;
  bool holds(const void* address) const;

  // Fills device memory through its file. Opening and closing cost time for each page that exists,
  // and a write to the file creates pages without opening them.
  void fill(std::byte* begin, std::size_t bytes, Poison pattern) const;
  // Returns the pages of freed memory to the system if the range is large.
  void release(std::byte* begin, std::size_t bytes) const;
  // Marks memory of `device` up to `end` as in use.
  void use(int device, std::byte* end);
  // Maps pages of another process's file, readable and writable by device work. Null if refused.
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
  std::vector<std::byte*> used_;  // end of the used range, by device, then of the windows
  std::map<std::byte*, std::size_t> open_windows_;
  int opened_ = 0;
};

// While one lives, device memory can be accessed. Creating one is cheap while another one lives.
class Opened {
 public:
  Opened() { Arena::get().open(); }
  ~Opened() { Arena::get().close(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
};

// While one lives, the calling thread runs device work. It may not call CUDA, and its invalid
// accesses are reported as the device's.
class DeviceWork {
 public:
  DeviceWork();
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;
  static bool here();
};

// Returns a text such as "byte 12 of allocation 3 of 4096 bytes" for the report of an invalid
// access. It runs in a signal handler, so it takes no lock that it would have to wait for.
std::string describe_address(const void* address);

}  // namespace shoal::emulated_gpu
