// What a device's driver offers for memory that other ranks reach.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives::device {

// How memory of one process is made, and opened by another one. Thread-safe. Throws unavailable
// where the driver refuses.
class PeerAccess {
 public:
  using Handle = std::array<std::byte, 64>;
  virtual ~PeerAccess() = default;
  virtual std::string name() const = 0;  // "CUDA IPC"
  virtual void* allocate(std::size_t bytes) = 0;
  // After all that is queued on the device: nothing says which of its streams used the memory.
  virtual void deallocate(void* base) noexcept = 0;
  // Of allocate(). Where nothing else is said, other processes cannot open it: unavailable.
  virtual Handle export_memory(void*) { refuse(); }
  virtual void* open(const Handle&) { refuse(); }
  virtual void close(void*) noexcept {}
  // Pointers into the memory of that device, of this process, may be used on this one.
  virtual void reach(Device) {}
  // Why network cards cannot read and write this device's memory (GPUDirect RDMA); empty: they can.
  virtual std::string cards_problem() const { return {}; }
  // Blocks until all that is queued on the device is done, on whatever stream. Throws what the
  // driver says, and internal while a step is captured there.
  virtual void wait_for_device() {}
  // What cards have written, and said so, is seen by all device work that starts from now on.
  virtual void flush_cards_writes() {}
  // With the device current on this thread, as those want it who ask its driver.
  virtual void on_device(const std::function<void()>& body) { body(); }

 private:
  [[noreturn]] void refuse() const {
    throw_error(ErrorCode::unavailable, "memory of {} is not opened by other processes", name());
  }
};
// Between processes none: a host device has no memory that could be opened.
std::unique_ptr<PeerAccess> make_host_peer_access();
std::unique_ptr<PeerAccess> make_cuda_peer_access(Device device);
std::unique_ptr<PeerAccess> make_peer_access(Device device);

}  // namespace shoal::collectives::device
