#include "shoal/runtime/memory/memory_resource.h"

#include <bit>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/memory/block_marks.h"
#include "shoal/runtime/memory/mebibytes.h"

namespace shoal {
namespace {

// Memory of the device's backend, with errors that name the purpose of the bytes.
class DeviceMemory final : public MemoryResource {
 public:
  explicit DeviceMemory(Device device) : device_(device), backend_(device_backend(device.type)) {}

  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override {
    try {
      return backend_.allocate(device_, bytes, stream);
    } catch (const Error& problem) {
      if (problem.code() != ErrorCode::out_of_memory) throw;
      const auto info = backend_.memory_info(device_);
      throw Error(
          ErrorCode::out_of_memory,
          fmt::format("{} memory: no room for {} of {}{}", name(), mebibytes(bytes), to_string(tag),
                      info.total == 0 ? std::string()
                                      : fmt::format(": {} of {} are available",
                                                    mebibytes(info.free), mebibytes(info.total))),
          "use a smaller batch or model, or more ranks");
    }
  }
  void deallocate(void* pointer, std::size_t, MemoryTag, Stream stream) noexcept override {
    backend_.deallocate(device_, pointer, stream);
  }
  Device device() const override { return device_; }
  std::string name() const override { return device_.is_cpu() ? "host" : to_string(device_); }

 private:
  Device device_;
  DeviceBackend& backend_;
};

// Host memory that devices copy from and to at full speed.
class PinnedMemory final : public MemoryResource {
 public:
  PinnedMemory() : backend_(device_backend(DeviceType::cuda)) {}

  void* allocate(std::size_t bytes, MemoryTag tag, Stream) override {
    try {
      return backend_.allocate_pinned(bytes);
    } catch (const Error& problem) {
      if (problem.code() != ErrorCode::out_of_memory) throw;
      throw Error(
          ErrorCode::out_of_memory,
          fmt::format("{} memory: no room for {} of {}", name(), mebibytes(bytes), to_string(tag)),
          "raise the limit of locked memory (ulimit -l), or run fewer ranks on this host");
    }
  }
  void deallocate(void* pointer, std::size_t, MemoryTag, Stream) noexcept override {
    backend_.deallocate_pinned(pointer);
  }
  Device device() const override { return Device::cpu(); }
  std::string name() const override { return "pinned host"; }

 private:
  DeviceBackend& backend_;
};

std::size_t index_of(MemoryTag tag) { return static_cast<std::size_t>(tag); }

}  // namespace

std::string_view to_string(MemoryTag tag) {
  switch (tag) {
    case MemoryTag::parameters:
      return "parameters";
    case MemoryTag::gradients:
      return "gradients";
    case MemoryTag::optimizer:
      return "optimizer";
    case MemoryTag::activations:
      return "activations";
    case MemoryTag::communication:
      return "communication";
    case MemoryTag::data:
      return "data";
    case MemoryTag::workspace:
      return "workspace";
  }
  return "unknown";
}

std::unique_ptr<MemoryResource> make_device_memory(Device device) {
  return std::make_unique<DeviceMemory>(device);
}

std::unique_ptr<MemoryResource> make_pinned_memory() {
  if (device_backend(DeviceType::cuda).count() == 0) return make_host_memory();
  return std::make_unique<PinnedMemory>();
}

std::unique_ptr<MemoryResource> make_host_memory() { return make_device_memory(Device::cpu()); }

struct PoolMemory::FreeLists {
  // Free blocks, by the stream that used them last and their size. Reuse on that stream needs no
  // event.
  std::map<std::pair<void*, std::size_t>, std::vector<void*>> blocks;
  // The tag with which each block was allocated upstream. The block is freed with the same tag,
  // although it may have been reused with other tags since.
  std::unordered_map<void*, MemoryTag> tags;
  std::size_t cached = 0;
};

PoolMemory::PoolMemory(MemoryResource& upstream)
    : upstream_(upstream), free_(std::make_unique<FreeLists>()) {}

PoolMemory::~PoolMemory() { trim(); }

std::size_t PoolMemory::rounded(std::size_t bytes) {
  if (bytes <= 256) return 256;
  const std::size_t step = std::bit_floor(bytes - 1) / 4;
  if (bytes > SIZE_MAX - step) return bytes;  // upstream will refuse it
  return (bytes + step - 1) / step * step;
}

void* PoolMemory::allocate(std::size_t bytes, MemoryTag tag, Stream stream) {
  const std::size_t size = rounded(bytes);
  {
    const std::scoped_lock lock(mutex_);
    auto found = free_->blocks.find({stream.handle, size});
    if (found != free_->blocks.end() && !found->second.empty()) {
      void* pointer = found->second.back();
      found->second.pop_back();
      free_->cached -= size;
      mark_taken(device(), pointer, bytes, size, stream, true);
      return pointer;
    }
  }
  void* pointer = nullptr;
  try {
    pointer = upstream_.allocate(size, tag, stream);
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::out_of_memory) throw;
    trim();  // unused blocks of other sizes may take the memory
    pointer = upstream_.allocate(size, tag, stream);
  }
  try {
    const std::scoped_lock lock(mutex_);
    free_->tags.emplace(pointer, tag);
  } catch (...) {
    upstream_.deallocate(pointer, size, tag, stream);
    throw;
  }
  mark_taken(device(), pointer, bytes, size, stream, false);
  return pointer;
}

void PoolMemory::deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                            Stream stream) noexcept {
  const std::size_t size = rounded(bytes);
  try {
    const std::scoped_lock lock(mutex_);
    free_->blocks[{stream.handle, size}].push_back(pointer);
    free_->cached += size;
    mark_given_back(device(), pointer, size, stream);
  } catch (...) {  // the free list itself cannot grow
    const std::scoped_lock lock(mutex_);
    forget_marks(device(), pointer, size);
    const auto known = free_->tags.find(pointer);
    upstream_.deallocate(pointer, size, known == free_->tags.end() ? tag : known->second, stream);
    if (known != free_->tags.end()) free_->tags.erase(known);
  }
}

void PoolMemory::trim() {
  const std::scoped_lock lock(mutex_);
  for (auto& [key, pointers] : free_->blocks)
    for (void* pointer : pointers) {
      const auto known = free_->tags.find(pointer);
      forget_marks(device(), pointer, key.second);
      // The block's stream may no longer exist. Without a handle, upstream waits for all streams.
      upstream_.deallocate(pointer, key.second, known->second, Stream{upstream_.device(), nullptr});
      free_->tags.erase(known);
    }
  free_->blocks.clear();
  free_->cached = 0;
}

std::size_t PoolMemory::cached_bytes() const {
  const std::scoped_lock lock(mutex_);
  return free_->cached;
}

void CountingMemory::Counter::add(std::int64_t bytes) {
  const std::int64_t now = current.fetch_add(bytes) + bytes;
  std::int64_t seen = peak.load();
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
}

std::string CountingMemory::describe() const {
  std::string text;
  for (std::size_t i = 0; i < kMemoryTags; ++i)
    if (const std::int64_t bytes = tags_[i].current.load(); bytes > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(static_cast<MemoryTag>(i)),
                          mebibytes(bytes));
  return text.empty() ? "nothing" : text;
}

void* CountingMemory::allocate(std::size_t bytes, MemoryTag tag, Stream stream) {
  void* pointer = nullptr;
  try {
    pointer = upstream_.allocate(bytes, tag, stream);
  } catch (const Error& problem) {
    constexpr std::string_view kHeld =
        "; held are ";  // if present, a CountingMemory below has already added its details
    if (problem.code() != ErrorCode::out_of_memory ||
        problem.message().find(kHeld) != std::string::npos)
      throw;
    throw Error(problem.code(), fmt::format("{}{}{}", problem.message(), kHeld, describe()),
                problem.remedy());
  }
  count_external(static_cast<std::int64_t>(bytes), tag);
  ++allocations_;
  return pointer;
}

void CountingMemory::deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                                Stream stream) noexcept {
  upstream_.deallocate(pointer, bytes, tag, stream);
  count_external(-static_cast<std::int64_t>(bytes), tag);
}

void CountingMemory::count_external(std::int64_t bytes, MemoryTag tag) {
  tags_[index_of(tag)].add(bytes);
  total_.add(bytes);
}

MemoryUsage CountingMemory::usage(MemoryTag tag) const {
  const Counter& counter = tags_[index_of(tag)];
  return {counter.current.load(), counter.peak.load()};
}

MemoryUsage CountingMemory::total() const { return {total_.current.load(), total_.peak.load()}; }

void CountingMemory::reset_peaks() {
  for (Counter& counter : tags_) counter.peak = counter.current.load();
  total_.peak = total_.current.load();
}

Buffer::Buffer(MemoryResource& resource, std::size_t bytes, MemoryTag tag, Stream stream)
    : resource_(&resource), bytes_(bytes), tag_(tag), device_(resource.device()), stream_(stream) {
  if (bytes > 0) data_ = resource.allocate(bytes, tag, stream);
}

Buffer::Buffer(Buffer&& other) noexcept
    : resource_(std::exchange(other.resource_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      tag_(other.tag_),
      device_(other.device_),
      stream_(other.stream_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    resource_ = std::exchange(other.resource_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    tag_ = other.tag_;
    device_ = other.device_;
    stream_ = other.stream_;
  }
  return *this;
}

void Buffer::reset() noexcept {
  if (data_) resource_->deallocate(data_, bytes_, tag_, stream_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace shoal
