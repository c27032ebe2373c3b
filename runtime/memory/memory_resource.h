// Memory allocation, counted by tag.
//
//   const std::unique_ptr<MemoryResource> host = make_host_memory();
//   PoolMemory pool(*host);
//   CountingMemory memory(pool);
//   const Buffer buffer(memory, 1 << 20, MemoryTag::data);  // 1 MiB; freed by its destructor
//   const std::string used = memory.describe();             // "data 1.0 MiB"
//
// Resources are stream-ordered: memory freed on a stream may be reused by work queued later on that
// stream. On the host this is ordinary allocation. All resources are thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "shoal/runtime/device/device.h"

namespace shoal {

// The purpose of an allocation. Reports and tests read the total of each tag.
enum class MemoryTag : std::uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  communication,
  data,
  workspace,
};
inline constexpr std::size_t kMemoryTags = 7;
std::string_view to_string(MemoryTag tag);

class MemoryResource {  // allocates and frees memory of one device
 public:
  virtual ~MemoryResource() = default;

  // `bytes` > 0. The pointer is aligned to 64 bytes (host) or 256 (CUDA); contents are undefined.
  // Throws out_of_memory with the requested bytes and the tag; a CountingMemory adds the current
  // bytes of each tag.
  virtual void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) = 0;
  // `bytes` and `tag` as at allocation. The memory is free once the work queued on `stream` so far
  // is done.
  virtual void deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                          Stream stream) noexcept = 0;
  virtual Device device() const = 0;
  virtual std::string name() const = 0;
};

// Plain aligned host memory; large blocks are advised to use huge pages.
std::unique_ptr<MemoryResource> make_host_memory();
// The device's own memory. CUDA: a stream-ordered driver pool that keeps freed memory. Allocating
// or freeing without a stream handle waits for the device (DeviceBackend).
std::unique_ptr<MemoryResource> make_device_memory(Device device);
// Page-locked ("pinned") host memory, which CUDA copies from and to without blocking; plain host
// memory if there is no CUDA device. Allocation is slow: keep the memory, or put a pool above it.
// Free it only when all work on it is done, since no stream orders the host's writes.
std::unique_ptr<MemoryResource> make_pinned_memory();

// Keeps freed blocks for reuse on the stream on which they were freed, so a steady step calls
// neither upstream nor the driver. Calls without a stream handle count as one stream, so all their
// blocks must be used in the order of one stream. Sizes are rounded up to a quarter of a power of
// two: waste is below 25 %. `upstream` must outlive the pool.
class PoolMemory final : public MemoryResource {
 public:
  explicit PoolMemory(MemoryResource& upstream);
  ~PoolMemory() override;
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return upstream_.device(); }
  std::string name() const override { return "pool over " + upstream_.name(); }

  void trim();  // returns all unused memory; on a device, blocks until the work on it is done
  std::size_t cached_bytes() const;  // kept for reuse, not in use

  static std::size_t rounded(std::size_t bytes);

 private:
  struct FreeLists;
  MemoryResource& upstream_;
  mutable std::mutex mutex_;
  std::unique_ptr<FreeLists> free_;
};

struct MemoryUsage {  // in bytes
  std::int64_t current = 0, peak = 0;
};

// Counts allocations: above a pool the requested bytes, below it those that the process holds.
// `upstream` must outlive it.
class CountingMemory final : public MemoryResource {
 public:
  explicit CountingMemory(MemoryResource& upstream) : upstream_(upstream) {}
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override;
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag, Stream stream) noexcept override;
  Device device() const override { return upstream_.device(); }
  std::string name() const override { return "counting over " + upstream_.name(); }

  MemoryUsage usage(MemoryTag tag) const;
  MemoryUsage total() const;
  std::int64_t allocations() const { return allocations_.load(); }
  void reset_peaks();  // peaks become the current bytes
  // "parameters 12.0 MiB, activations 3.5 MiB": current bytes by tag; or "nothing".
  std::string describe() const;
  // Also counts memory from elsewhere (a Communicator's symmetric memory).
  void count_external(std::int64_t bytes, MemoryTag tag);

 private:
  struct Counter {
    std::atomic<std::int64_t> current{0}, peak{0};
    void add(std::int64_t bytes);
  };
  MemoryResource& upstream_;
  std::array<Counter, kMemoryTags> tags_;
  Counter total_;
  std::atomic<std::int64_t> allocations_{0};
};

// Owns bytes from a resource, which must outlive it. Move-only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(MemoryResource& resource, std::size_t bytes, MemoryTag tag, Stream stream = {});
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() const { return data_; }
  std::size_t size() const { return bytes_; }  // bytes
  MemoryTag tag() const { return tag_; }
  Device device() const { return device_; }
  MemoryResource* resource() const { return resource_; }
  explicit operator bool() const { return data_ != nullptr; }
  void reset() noexcept;

 private:
  MemoryResource* resource_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryTag tag_ = MemoryTag::workspace;
  Device device_{};
  Stream stream_{};
};

}  // namespace shoal
