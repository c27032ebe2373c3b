#include "shoal/collectives/transport/process_memory.h"

#include <cerrno>

#include <sys/uio.h>

namespace shoal::collectives::transport {
namespace {

using Transfer = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                             unsigned long);

int move(Transfer transfer, std::int64_t pid, std::uint64_t remote, std::uint64_t local,
         std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    // Neither address is dereferenced here.
    const iovec here{reinterpret_cast<void*>(local + done), bytes - done};    // NOLINT
    const iovec there{reinterpret_cast<void*>(remote + done), bytes - done};  // NOLINT
    const ssize_t moved = transfer(static_cast<pid_t>(pid), &here, 1, &there, 1, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return errno;
    if (moved == 0) return EFAULT;
    done += static_cast<std::size_t>(moved);
  }
  return 0;
}

}  // namespace

int read_process(std::int64_t pid, std::uint64_t from, void* to, std::size_t bytes) {
  return move(process_vm_readv, pid, from, reinterpret_cast<std::uintptr_t>(to), bytes);
}

int write_process(std::int64_t pid, std::uint64_t to, const void* from, std::size_t bytes) {
  return move(process_vm_writev, pid, to, reinterpret_cast<std::uintptr_t>(from), bytes);
}

}  // namespace shoal::collectives::transport
