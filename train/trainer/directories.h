// An output_dir that is one directory on some ranks and another on others: hosts with disks of
// their own, as SageMaker's are, whose directories are put together between two starts of a run.
#pragma once

#include <string>
#include <vector>

#include "shoal/collectives/communicator.h"

namespace shoal {

// By rank: the lowest rank that sees the same directory, which looks after it.
struct DirectoryOwners {
  std::vector<int> of_rank;
  bool is_shared() const;  // by all
  bool is_owner(int rank) const { return of_rank[static_cast<std::size_t>(rank)] == rank; }
};

// Looks: every owner puts a file there, which others find or do not; makes the directory. A rank
// that cannot write sees what it sees. Collective, blocks; the same on every rank.
DirectoryOwners find_owners(collectives::Communicator& communicator, const std::string& path);

// Brings the files below `path` of each owner to the owners that lack them (or have another size);
// `to_first`: to rank 0's only. Collective, blocks. io.
void gather_files(collectives::Communicator& communicator, const DirectoryOwners& owners,
                  const std::string& path, bool to_first);

}  // namespace shoal
