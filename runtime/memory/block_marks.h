// Blocks that a resource cuts from memory it keeps, told to AddressSanitizer: a block may be
// touched from when it is handed out until it is given back, and not behind the bytes asked for. In
// builds without it every call here is nothing.
//
// When is as the resource orders its blocks: on the host at once, on a device in the stream's turn,
// of which the emulated GPU alone knows (tests/support/emulated_gpu). A device's block without a
// stream handle stays as it was handed out first, for nobody knows when it is done with. Pinned
// memory in a stream's order is not marked, for the host may touch it before that turn.
#pragma once

#include <cstddef>

#include "shoal/runtime/device/device.h"

namespace shoal {

#ifdef __SANITIZE_ADDRESS__

// `bytes` of the `room` at `block` have an owner. `again`: it has had others.
void mark_taken(Device device, void* block, std::size_t bytes, std::size_t room, Stream stream,
                bool again) noexcept;
// Before anybody can be handed the block.
void mark_given_back(Device device, void* block, std::size_t room, Stream stream) noexcept;
// Before it goes back to where it came from.
void forget_marks(Device device, void* block, std::size_t room) noexcept;

// Of `room` bytes of device memory only the first `allowed` may be touched from now on in the
// stream, or, where it has no handle, at once. A program without the emulated GPU has no such
// memory.
void mark_device_block(void* block, std::size_t allowed, std::size_t room, Stream stream) noexcept;

#else

inline void mark_taken(Device, void*, std::size_t, std::size_t, Stream, bool) noexcept {}
inline void mark_given_back(Device, void*, std::size_t, Stream) noexcept {}
inline void forget_marks(Device, void*, std::size_t) noexcept {}

#endif

}  // namespace shoal
