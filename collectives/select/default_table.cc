#include "shoal/collectives/select/algorithm_selector.h"

namespace shoal::collectives {

// Few steps for small messages, no byte more than needed for large ones; docs/algorithms.md says
// which costs what. direct needs as few steps as two but 2(n - 1) messages a rank.
std::string_view default_table() {
  return R"(all_reduce:@direct:10
all_reduce:0-16k:@recursive_doubling:20
all_reduce:16k-256k:[9-inf]:@halving_doubling:20
reduce_scatter:@direct:10
reduce_scatter:0-16k:[9-inf]:@halving_doubling:20
all_gather:@direct:10
all_gather:0-16k:[5-inf]:@bruck:20
reduce:@direct:5
broadcast,reduce:@tree:10
broadcast,reduce:64k-inf:@sharded:20
gather,scatter:@direct:10
gather,scatter:0-16k:[9-inf]:@tree:20
all_to_all:@direct:10
all_to_all:16m-inf:[17-inf]:@pairwise:20
barrier:@dissemination:10
)";
}

}  // namespace shoal::collectives
