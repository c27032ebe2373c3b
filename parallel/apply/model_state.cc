#include "shoal/parallel/apply/model_state.h"

#include <algorithm>

namespace shoal::parallel {

std::vector<std::shared_ptr<collectives::Communicator>> make_tied_groups(
    const ProcessMesh& mesh, const std::vector<TiedSet>& tied, int parts, int part) {
  const MeshPlace& place = mesh.place();
  std::vector<std::shared_ptr<collectives::Communicator>> groups;
  for (const TiedSet& set : tied) {
    const bool here = std::ranges::binary_search(set.ranks, place.pp);
    const int color = (set.partial ? 0 : place.tp) * parts + part;
    groups.push_back(mesh.split(mesh.world(), here ? color : -1, mesh.world().rank()));
  }
  return groups;
}

}  // namespace shoal::parallel
