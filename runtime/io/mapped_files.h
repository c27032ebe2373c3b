// The mapped files of this process, for the SIGBUS handler. Private to runtime/io.
#pragma once

#include <cstddef>

namespace shoal {

// `path` and the mapping must remain valid until forget_mapped(). If the table is full, the file is
// not noted. All three functions are thread-safe; path_of_mapped() may also be called from a signal
// handler.
void note_mapped(const void* begin, std::size_t bytes, const char* path) noexcept;
void forget_mapped(const void* begin) noexcept;
// The noted file that `address` belongs to; null: none.
const char* path_of_mapped(const void* address) noexcept;

}  // namespace shoal
