// How documents share blocks (packing.h).
#pragma once

#include <cstdint>

namespace shoal {

// TRL's names. A part of a document is a sequence of its own: its positions begin at 0, and its
// first token is nobody's target.
enum class PackingStrategy : std::uint8_t {
  bfd,        // whole documents, best-fit decreasing; one longer than a block loses its rest
  bfd_split,  // the same, but a longer one is cut into parts of a block each, and a shorter one
  wrapped,    // end to end as CausalLmDataset has them, cut where blocks end
};

}  // namespace shoal
