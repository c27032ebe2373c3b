// Packing strategies (packing.h).
#pragma once

#include <cstdint>

namespace shoal {

// Names as in TRL. Each part of a document is a sequence: its positions begin at 0, and its first
// token is not a prediction target.
enum class PackingStrategy : std::uint8_t {
  bfd,        // whole documents, best-fit decreasing; truncates documents longer than a block
  bfd_split,  // as bfd, but splits longer documents into block-sized parts and a remainder
  wrapped,    // concatenated as in CausalLmDataset, cut at block boundaries
};

}  // namespace shoal
