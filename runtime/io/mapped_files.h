// The mapped files of this process, for a signal handler. Not for other libraries.
#pragma once

#include <cstddef>

namespace shoal {

// `path` and the mapping must stay until forget_mapped(). Where there is no room, a file is not
// noted. All three may be called from any thread; path_of_mapped() also from a signal handler.
void note_mapped(const void* begin, std::size_t bytes, const char* path) noexcept;
void forget_mapped(const void* begin) noexcept;
// The file that `address` belongs to; null: none that is noted.
const char* path_of_mapped(const void* address) noexcept;

}  // namespace shoal
