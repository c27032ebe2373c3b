// Access to another process's memory without mapping it, by process_vm_readv(2) and
// process_vm_writev(2): the kernel makes one copy. It may be forbidden (ptrace rules, a container's
// filter, a separate user namespace), so callers must try it first.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::collectives::transport {

// Copy all `bytes` and return 0, else the errno: ESRCH: no such process; EPERM, ENOSYS: not
// permitted; EFAULT: nothing is mapped there. They do not wait for the other process. A failed
// write may have written a part.
int read_process(std::int64_t pid, std::uint64_t from, void* to, std::size_t bytes);
int write_process(std::int64_t pid, std::uint64_t to, const void* from, std::size_t bytes);

}  // namespace shoal::collectives::transport
