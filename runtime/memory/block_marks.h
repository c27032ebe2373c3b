// Tells AddressSanitizer about blocks that a resource cuts from memory it keeps. A block may be
// touched only while it is handed out, and only within the bytes asked for. Without
// AddressSanitizer every call is a no-op.
//
// On the host the marks take effect at once. On a device they take effect in stream order, which
// only the emulated GPU can follow (tests/support/emulated_gpu). A device block without a stream
// handle keeps its first marks, since the end of its use is unknown. Pinned memory in stream order
// is not marked, since the host may touch it earlier.
#pragma once

#include <cstddef>

#include "shoal/runtime/device/device.h"

namespace shoal {

#ifdef __SANITIZE_ADDRESS__

// Marks `bytes` of the `room` bytes at `block` as owned. `again`: the block had earlier owners.
void mark_taken(Device device, void* block, std::size_t bytes, std::size_t room, Stream stream,
                bool again) noexcept;
// Call before the block can be handed out again.
void mark_given_back(Device device, void* block, std::size_t room, Stream stream) noexcept;
// Call before the block returns to its source.
void forget_marks(Device device, void* block, std::size_t room) noexcept;

// Only the first `allowed` of `room` bytes of device memory may be touched from now on in the
// stream, or at once if it has no handle. Does nothing in a program without the emulated GPU.
void mark_device_block(void* block, std::size_t allowed, std::size_t room, Stream stream) noexcept;

#else

inline void mark_taken(Device, void*, std::size_t, std::size_t, Stream, bool) noexcept {}
inline void mark_given_back(Device, void*, std::size_t, Stream) noexcept {}
inline void forget_marks(Device, void*, std::size_t) noexcept {}

#endif

}  // namespace shoal
