// Device memory between processes: a handle names the owner's file of device memory, which the
// other process opens through /proc and maps at an address of its own.
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
};

// With the lock; by what the process was given.
std::map<void*, Window>& windows() {
  static auto& all = *new std::map<void*, Window>;
  return all;
}

std::uint64_t inode_of(int file) {
  struct stat status{};
  return fstat(file, &status) == 0 ? static_cast<std::uint64_t>(status.st_ino) : 0;
}

}  // namespace

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
    void* begin = inode_of(file) == handle.inode
                      ? Arena::get().open_window(file, handle.offset, handle.mapped)
                      : nullptr;
    close(file);
    if (!begin) return cudaErrorMapBufferObjectFailed;
    *pointer = static_cast<std::byte*>(begin) + kGuard;
    forbid(begin, handle.mapped);
    allow(*pointer, handle.bytes);
    windows().emplace(*pointer, Window{handle, begin, 1});
    // The flag lets this device use it, whatever number its own has there.
    int device = 0;
    (void)cudaGetDevice(&device);
    add_opened(*pointer, handle.bytes, device);
    return cudaSuccess;
  });
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return call("cudaIpcCloseMemHandle", [&](Lock&) {
    const auto found = windows().find(pointer);
    if (found == windows().end()) return cudaErrorInvalidValue;
    if (--found->second.opened > 0) return cudaSuccess;
    Arena::get().close_window(found->second.begin);
    remove_opened(pointer);
    windows().erase(found);
    return cudaSuccess;
  });
}
