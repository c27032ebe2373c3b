// The driver's interface to device memory that other ranks reach.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives::device {

// Allocates memory and opens other processes' memory. Thread-safe. Throws unavailable if the driver
// refuses.
class PeerAccess {
 public:
  using Handle = std::array<std::byte, 64>;
  virtual ~PeerAccess() = default;
  virtual std::string name() const = 0;  // "CUDA IPC"
  virtual void* allocate(std::size_t bytes) = 0;
  // Waits for all work on the device, because it cannot know which streams used the memory.
  virtual void deallocate(void* base) noexcept = 0;
  // These take memory from allocate(). By default other processes cannot open it, and the calls
  // throw unavailable.
  virtual Handle export_memory(void*) { refuse(); }
  virtual void* open(const Handle&) { refuse(); }
  virtual void close(void*) noexcept {}
  // Makes this process's pointers into that device's memory usable on this device.
  virtual void reach(Device) {}
  // Why network cards cannot access this device's memory (GPUDirect RDMA). Empty: they can.
  virtual std::string cards_problem() const { return {}; }
  // Blocks until all work queued on the device, on any stream, is done. Throws the driver's error,
  // or internal while a step is being captured there.
  virtual void wait_for_device() {}
  // Makes completed writes of network cards visible to all device work that starts later.
  virtual void flush_cards_writes() {}
  // Runs `body` with this device current on the calling thread, as driver calls require.
  virtual void on_device(const std::function<void()>& body) { body(); }

 private:
  [[noreturn]] void refuse() const {
    throw_error(ErrorCode::unavailable, "memory of {} is not opened by other processes", name());
  }
};
// Works within one process only: another process cannot open memory of a host device.
std::unique_ptr<PeerAccess> make_host_peer_access();
std::unique_ptr<PeerAccess> make_cuda_peer_access(Device device);
std::unique_ptr<PeerAccess> make_peer_access(Device device);

}  // namespace shoal::collectives::device
