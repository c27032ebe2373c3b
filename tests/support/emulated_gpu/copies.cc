// Copies and fills: which memory they may touch, and when their host side is read or written.
#include <atomic>
#include <cstring>
#include <vector>

#include "arena.h"
#include "memory.h"

using namespace shoal::emulated_gpu;

namespace {

bool is_host(Kind kind) { return kind != Kind::device; }

// CUDA accepts pinned memory on either side.
bool agrees(cudaMemcpyKind kind, Kind to, Kind from) {
  switch (kind) {
    case cudaMemcpyDefault:
      return true;
    case cudaMemcpyHostToHost:
      return is_host(to) && is_host(from);
    case cudaMemcpyHostToDevice:
      return to != Kind::pageable && is_host(from);
    case cudaMemcpyDeviceToHost:
      return is_host(to) && from != Kind::pageable;
    case cudaMemcpyDeviceToDevice:
      return to != Kind::pageable && from != Kind::pageable;
  }
  return false;
}

// Callbacks of a test.
std::atomic<void (*)(cudaMemcpyKind)> before_copy{nullptr};
std::atomic<bool (*)(cudaMemcpyKind)> may_copy{nullptr};

cudaMemcpyKind direction(Kind to, Kind from) {
  if (is_host(to)) return is_host(from) ? cudaMemcpyHostToHost : cudaMemcpyDeviceToHost;
  return is_host(from) ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice;
}

void use(Operation& operation, const Place& place) {
  if (place.pinned) operation.uses.push_back(place.pinned);
}

}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
  return call("cudaMemcpyAsync", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    const Place target = place_of(to, bytes), source = place_of(from, bytes);
    if (!target.inside || !source.inside) return cudaErrorInvalidValue;
    if (!agrees(kind, target.kind, source.kind)) return cudaErrorInvalidMemcpyDirection;
    const bool waits = target.kind == Kind::pageable;
    // The driver decides whether pageable memory is accessed at once or later, so assume a wait.
    if (waits || source.kind == Kind::pageable)
      if (const cudaError_t refused = refuse_wait(lock, stream)) return refused;
    Operation copy;
    use(copy, target);
    use(copy, source);
    if (target.kind == Kind::pinned && source.kind == Kind::device)
      copy.fills.push_back({target.pinned, static_cast<std::byte*>(to), bytes});
    if (source.kind == Kind::pageable && !waits) {  // the caller may change it after the call
      const auto* begin = static_cast<const std::byte*>(from);
      copy.work = [to, taken = std::vector<std::byte>(begin, begin + bytes)] {
        std::memcpy(to, taken.data(), taken.size());
      };
    } else {
      const cudaMemcpyKind way = direction(target.kind, source.kind);
      if (may_copy.load())
        copy.may_run = [way] {
          auto* const may = may_copy.load();
          return !may || may(way);
        };
      copy.work = [to, from, bytes, way] {
        if (auto* const told = before_copy.load()) told(way);
        std::memmove(to, from, bytes);
      };
    }
    const cudaError_t status = submit(lock, stream, std::move(copy));
    if (status == cudaSuccess && waits) run(lock, stream);
    return status;
  });
}

// Sets a callback that device work makes before each copy that involves no pageable memory. It may
// block, or end the process. Null removes it.
extern "C" __attribute__((visibility("default"))) void shoal_emulated_gpu_before_copies(
    void (*told)(cudaMemcpyKind)) {
  before_copy = told;
}

// Sets a callback that decides whether such a copy may run yet. Until it returns true, the copy's
// stream waits; a thread that polls asks again and is not blocked. It applies to copies queued
// while it is set, and it may not call CUDA. Null removes it.
extern "C" __attribute__((visibility("default"))) void shoal_emulated_gpu_hold_copies(
    bool (*may)(cudaMemcpyKind)) {
  may_copy = may;
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t handle) {
  return call("cudaMemsetAsync", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    const Place target = place_of(to, bytes);
    if (!target.inside || target.kind == Kind::pageable) return cudaErrorInvalidValue;
    Operation fill;
    use(fill, target);
    if (target.kind == Kind::pinned)
      fill.fills.push_back({target.pinned, static_cast<std::byte*>(to), bytes});
    fill.work = [to, value, bytes] { std::memset(to, value, bytes); };
    return submit(lock, stream, std::move(fill));
  });
}
