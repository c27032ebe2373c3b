// Linked into programs with AddressSanitizer but without the emulated GPU.
#include "shoal/runtime/memory/block_marks.h"

namespace shoal {

void mark_device_block(void*, std::size_t, std::size_t, Stream) noexcept {}

}  // namespace shoal
