// Tells AddressSanitizer which blocks of a memory resource are in use. A block may be accessed only
// while it is allocated, and only within the requested bytes. Without AddressSanitizer, every call
// is a no-op.
//
// On the host, marks take effect at once. On a device they take effect in stream order, which only
// the emulated GPU supports (tests/support/emulated_gpu). A device block without a stream handle
// keeps its first marks, since it is unknown when its use ends. Pinned memory with a stream handle
// is not marked, since the host may access it before the stream does.
#pragma once

#include <cstddef>

#include "shoal/runtime/device/device.h"

namespace shoal {

#ifdef __SANITIZE_ADDRESS__

// Marks `bytes` of the `room` bytes at `block` as in use. `again`: the block was in use before.
void mark_taken(Device device, void* block, std::size_t bytes, std::size_t room, Stream stream,
                bool again) noexcept;
// Call before the block can be handed out again.
void mark_given_back(Device device, void* block, std::size_t room, Stream stream) noexcept;
// Call before the block returns to the upstream resource.
void forget_marks(Device device, void* block, std::size_t room) noexcept;

// Allows access to only the first `allowed` of `room` bytes of device memory, from this point of
// the stream on, or at once if `stream` has no handle. Does nothing in a program without the
// emulated GPU.
void mark_device_block(void* block, std::size_t allowed, std::size_t room, Stream stream) noexcept;

#else

inline void mark_taken(Device, void*, std::size_t, std::size_t, Stream, bool) noexcept {}
inline void mark_given_back(Device, void*, std::size_t, Stream) noexcept {}
inline void forget_marks(Device, void*, std::size_t) noexcept {}

#endif

}  // namespace shoal
