#include "shoal/torch/allocator.h"

#include <mutex>

#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include "shoal/runtime/base/env.h"

namespace shoal::pytorch {
namespace {

// Smaller ones are copied with the control message or in a few microseconds, and most are no
// gradients.
constexpr std::size_t kLarge = 64 << 10;

struct Block {
  std::shared_ptr<collectives::Communicator> owner;  // must outlive its memory
  void* pointer;
  std::size_t bytes;
};

class SymmetricAllocator final : public c10::Allocator {
 public:
  explicit SymmetricAllocator(c10::Allocator& ordinary) : ordinary_(ordinary) {}

  void serve_from(const std::shared_ptr<collectives::Communicator>& owner) {
    const std::lock_guard lock(mutex_);
    if (owner_.expired()) owner_ = owner;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    // A forked process would hand out the same ranges as its parent.
    if (bytes < kLarge || ::getpid() != process_) return ordinary_.allocate(bytes);
    std::shared_ptr<collectives::Communicator> owner;
    {
      const std::lock_guard lock(mutex_);
      owner = owner_.lock();
    }
    if (!owner) return ordinary_.allocate(bytes);
    void* const pointer =
        owner->memory_resource().allocate(bytes, MemoryTag::communication, Stream{});
    auto* const block = new Block{std::move(owner), pointer, bytes};
    return {pointer, block, &release, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    block->owner->memory_resource().deallocate(block->pointer, block->bytes,
                                               MemoryTag::communication, Stream{});
  }

  c10::Allocator& ordinary_;
  const int process_ = ::getpid();
  std::mutex mutex_;
  std::weak_ptr<collectives::Communicator> owner_;
};

}  // namespace

void offer_symmetric_memory(const std::shared_ptr<collectives::Communicator>& owner) {
  if (!env::get_boolean(env::kTorchSymmetric) || owner->size() == 1) return;
  static auto* const allocator = [] {  // tensors may outlive everything
    auto* made = new SymmetricAllocator(*c10::GetCPUAllocator());
    c10::SetCPUAllocator(made, 1);
    return made;
  }();
  allocator->serve_from(owner);
}

}  // namespace shoal::pytorch
