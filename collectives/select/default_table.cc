#include <fmt/format.h>

#include "shoal/collectives/select/algorithm_selector.h"

namespace shoal::collectives {

// Few steps for small messages, minimal bytes for large ones; docs/internals/algorithms.md gives
// the costs. direct takes only two steps but sends 2(n - 1) messages a rank.
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
all_reduce,broadcast,reduce:{2-inf}:@hierarchical:30
all_gather,reduce_scatter:64k-inf:{2-inf}:@hierarchical:30
)";
}

// An inline exchange synchronises once, but each rank reads the whole input of all others: up to n
// times the bytes. Other plans synchronise twice, or four times if buffers are not symmetric.
// Between hosts, latency dominates below 64 KiB: fewer messages matter more than fewer bytes.
std::string shared_memory_rules(int ranks) {
  return fmt::format(R"(broadcast,reduce:{{1}}:@direct:10
all_reduce:0-{0}:[{2}]:{{1}}:@inline:20
broadcast:0-8193:{{1}}:@inline:20
all_gather,gather:0-16385:{{1}}:@inline:20
reduce,reduce_scatter,scatter,all_to_all:0-{1}:[{2}]:{{1}}:@inline:20
)",
                     (ranks <= 4 ? 8192 : 16384 / ranks) + 1, 16384 / ranks + 1, ranks);
}

}  // namespace shoal::collectives
