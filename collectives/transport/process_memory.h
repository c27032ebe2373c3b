// Another process's memory without mapping it: process_vm_readv(2) and process_vm_writev(2), one
// copy, made by the kernel. It may be forbidden (ptrace rules, a container's filter or its own user
// namespace), so a user tries it before relying on it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::collectives::transport {

// All of `bytes`, or the errno: ESRCH: no such process (any more); EPERM, ENOSYS: not permitted;
// EFAULT: nothing lies there. They do not wait for the other process. What a failed write has
// written so far is there.
int read_process(std::int64_t pid, std::uint64_t from, void* to, std::size_t bytes);
int write_process(std::int64_t pid, std::uint64_t to, const void* from, std::size_t bytes);

}  // namespace shoal::collectives::transport
