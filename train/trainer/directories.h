// Handles an output_dir that is a separate directory on each host's local disk. SageMaker merges
// these directories between two starts of a run.
#pragma once

#include <string>
#include <vector>

#include "shoal/collectives/communicator.h"

namespace shoal {

// For each rank, the lowest rank that sees the same directory. That rank owns the directory.
struct DirectoryOwners {
  std::vector<int> of_rank;
  bool is_shared() const;  // all ranks see the same directory
  bool is_owner(int rank) const { return of_rank[static_cast<std::size_t>(rank)] == rank; }
};

// Creates the directory and finds its owners: each owner writes a file, and the other ranks check
// whether they see it. A rank that cannot write can still find its owner. Collective, blocks; the
// same result on every rank.
DirectoryOwners find_owners(collectives::Communicator& communicator, const std::string& path);

// Copies each owner's files below `path` to the owners that lack them or have them with another
// size.
// `to_first`: only to rank 0's directory. Collective, blocks. Throws io.
void gather_files(collectives::Communicator& communicator, const DirectoryOwners& owners,
                  const std::string& path, bool to_first);

}  // namespace shoal
