#include "shoal/torch/allocator.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <unordered_map>

#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <unistd.h>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"

namespace shoal::pytorch {
namespace {

// Smaller tensors gain little: they are sent with the control message or copied within a few
// microseconds. Most of them are not gradients.
constexpr std::size_t kLarge = 64 << 10;

// The blocks of symmetric tensors, keyed by address. PyTorch frees some memory by its address alone
// (raw_deallocate).
class Blocks {
 public:
  void add(void* pointer, SymmetricBlock block) {
    const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
    const std::lock_guard lock(mutex_);
    lowest_ = std::min(lowest_.load(), begin);
    highest_ = std::max(highest_.load(), begin);
    blocks_.emplace(pointer, std::move(block));
  }

  // Called before and after fork().
  void hold() { mutex_.lock(); }
  void release() { mutex_.unlock(); }

  // Removes and returns the block. It has no owner if PyTorch's allocator made the memory, which is
  // mostly recognised without the lock.
  SymmetricBlock take(void* pointer) {
    const auto begin = reinterpret_cast<std::uintptr_t>(pointer);
    if (begin < lowest_ || begin > highest_) return {};
    const std::lock_guard lock(mutex_);
    auto found = blocks_.extract(pointer);
    return found ? std::move(found.mapped()) : SymmetricBlock{};
  }

 private:
  std::mutex mutex_;
  std::atomic<std::uintptr_t> lowest_ = std::numeric_limits<std::uintptr_t>::max(), highest_ = 0;
  std::unordered_map<void*, SymmetricBlock> blocks_;
};

Blocks& blocks() {
  static auto* const made = [] {
    // A forked child, such as a data loader's worker, also frees tensors. So it must not inherit
    // the lock while another thread of its parent holds it.
    const int failed = ::pthread_atfork([] { blocks().hold(); }, [] { blocks().release(); },
                                        [] { blocks().release(); });
    SHOAL_CHECK(failed == 0, "pthread_atfork: {}", std::strerror(failed));
    return new Blocks;  // never destroyed: tensors may outlive statics
  }();
  return *made;
}

c10::DeleterFnPtr free_ordinary = nullptr;

class SymmetricAllocator final : public c10::Allocator {
 public:
  explicit SymmetricAllocator(c10::Allocator& ordinary) : ordinary_(ordinary) {
    free_ordinary = ordinary.raw_deleter();
  }

  void serve_from(const std::shared_ptr<collectives::Communicator>& owner) {
    const std::lock_guard lock(mutex_);
    if (owner_.expired()) owner_ = owner;
  }

  void stop_serving_from(const std::shared_ptr<collectives::Communicator>& owner) {
    const std::lock_guard lock(mutex_);
    if (owner_.lock() == owner) owner_.reset();
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    std::shared_ptr<collectives::Communicator> owner;
    // A forked process would allocate the same addresses as its parent.
    if (bytes >= kLarge && ::getpid() == process_) {
      const std::lock_guard lock(mutex_);
      owner = owner_.lock();
    }
    void* pointer = nullptr;
    if (!owner) {
      pointer = ordinary_.raw_allocate(bytes);
    } else {
      pointer = owner->memory_resource().allocate(bytes, MemoryTag::communication, Stream{});
      blocks().add(pointer, {std::move(owner), bytes, process_});
    }
    return {pointer, pointer, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* pointer) {
    SymmetricBlock block = blocks().take(pointer);
    if (!block.owner) return free_ordinary(pointer);
    free_symmetric(std::move(block), pointer);
  }

  c10::Allocator& ordinary_;
  const int process_ = ::getpid();
  std::mutex mutex_;
  std::weak_ptr<collectives::Communicator> owner_;
};

std::atomic<SymmetricAllocator*> installed = nullptr;

}  // namespace

void free_symmetric(SymmetricBlock block, void* pointer) {
  if (block.process != ::getpid()) {
    new auto(std::move(block));  // NOLINT(bugprone-unhandled-exception-at-new)
    return;
  }
  block.owner->memory_resource().deallocate(pointer, block.bytes, MemoryTag::communication,
                                            Stream{});
}

void offer_symmetric_memory(const std::shared_ptr<collectives::Communicator>& owner) {
  if (!env::get_boolean(env::kTorchSymmetric) || owner->size() == 1) return;
  static auto* const allocator = [] {  // never destroyed: tensors may outlive statics
    auto* made = new SymmetricAllocator(*c10::GetCPUAllocator());
    c10::SetCPUAllocator(made, 1);
    installed = made;
    return made;
  }();
  allocator->serve_from(owner);
}

void withdraw_symmetric_memory(const std::shared_ptr<collectives::Communicator>& owner) {
  if (auto* const allocator = installed.load()) allocator->stop_serving_from(owner);
}

}  // namespace shoal::pytorch
