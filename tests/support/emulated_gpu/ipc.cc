// Device memory shared between processes. A handle names the owner's file of device memory. The
// other process opens the file through /proc and maps it at its own address. While it has the
// memory open, it holds a lock on the first byte, so that the owner can tell. The lock ends with
// the process.
#include <cstring>
#include <string>

#include "arena.h"
#include "memory.h"
#include "sanitizer.h"
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace shoal::emulated_gpu;

namespace {

constexpr std::uint64_t kMagic = 0x5348'4f41'4c49'5043u;

struct Handle {
  std::uint64_t magic, inode, offset, bytes, mapped;
  std::int32_t process, file, device, unused;
};
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t));

struct Window {
  Handle handle;
  void* begin;
  int opened;
  int file;  // holds the lock
};

// Keyed by the address that the process was given. Needs the lock.
std::map<void*, Window>& windows() {
  static auto& all = *new std::map<void*, Window>;
  return all;
}

// A lock of type `type` on the byte at `offset`, for this open file description.
struct flock lock_of(short type, std::size_t offset) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(offset);
  lock.l_len = 1;
  return lock;
}

void (*before_close)() = nullptr;

std::uint64_t inode_of(int file) {
  struct stat status{};
  return fstat(file, &status) == 0 ? static_cast<std::uint64_t>(status.st_ino) : 0;
}

}  // namespace

bool shoal::emulated_gpu::is_open_elsewhere(const Allocation& allocation) {
  const Arena& arena = Arena::get();
  struct flock lock =
      lock_of(F_WRLCK, static_cast<std::size_t>(allocation.block - arena.begin(allocation.device)));
  return fcntl(arena.file(allocation.device), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

// Sets a callback that is made before this process closes memory of another one. It may block, and
// may not call CUDA. Null removes it.
extern "C" __attribute__((visibility("default"))) void shoal_emulated_gpu_before_close(
    void (*told)()) {
  before_close = told;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* out, void* pointer) {
  return call("cudaIpcGetMemHandle", [&](Lock&) {
    const auto found = exportable(pointer);
    if (!out || !found) return cudaErrorInvalidValue;
    const int file = Arena::get().file(found->device);
    Handle handle{};
    handle.magic = kMagic;
    handle.inode = inode_of(file);
    handle.offset = static_cast<std::uint64_t>(found->block - Arena::get().begin(found->device));
    handle.bytes = found->bytes;
    handle.mapped = found->size;
    handle.process = getpid();
    handle.file = file;
    handle.device = found->device;
    std::memset(out, 0, sizeof *out);
    std::memcpy(out, &handle, sizeof handle);
    return cudaSuccess;
  });
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t given, unsigned flags) {
  return call("cudaIpcOpenMemHandle", [&](Lock&) {
    Handle handle{};
    std::memcpy(&handle, &given, sizeof handle);
    if (!pointer || flags != cudaIpcMemLazyEnablePeerAccess || handle.magic != kMagic)
      return cudaErrorInvalidValue;
    if (handle.process == getpid()) return cudaErrorDeviceUninitialized;
    for (auto& [data, window] : windows())
      if (std::memcmp(&window.handle, &handle, sizeof handle) == 0) {
        ++window.opened;
        add_opened(data, handle.bytes, handle.device);
        *pointer = data;
        return cudaSuccess;
      }
    const std::string path = fmt::format("/proc/{}/fd/{}", handle.process, handle.file);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return cudaErrorMapBufferObjectFailed;
    struct flock lock = lock_of(F_RDLCK, handle.offset);
    void* begin = inode_of(file) == handle.inode && fcntl(file, F_OFD_SETLK, &lock) == 0
                      ? Arena::get().open_window(file, handle.offset, handle.mapped)
                      : nullptr;
    if (!begin) {
      close(file);
      return cudaErrorMapBufferObjectFailed;
    }
    *pointer = static_cast<std::byte*>(begin) + kGuard;
    forbid(begin, handle.mapped);
    allow(*pointer, handle.bytes);
    windows().emplace(*pointer, Window{handle, begin, 1, file});
    // The flag gives access to the current device, whatever its number in the owner's process.
    int device = 0;
    (void)cudaGetDevice(&device);
    add_opened(*pointer, handle.bytes, device);
    return cudaSuccess;
  });
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  if (before_close) before_close();
  return call("cudaIpcCloseMemHandle", [&](Lock&) {
    const auto found = windows().find(pointer);
    if (found == windows().end()) return cudaErrorInvalidValue;
    if (--found->second.opened > 0) return cudaSuccess;
    Arena::get().close_window(found->second.begin);
    remove_opened(pointer);
    close(found->second.file);
    windows().erase(found);
    return cudaSuccess;
  });
}
