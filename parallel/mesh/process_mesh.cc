#include "shoal/parallel/mesh/process_mesh.h"

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// The axes of `axes` along which there is more than one rank: groups that are the same ranks are
// one group.
Axes effective(Axes axes, const MeshShape& shape) {
  for (const Axes axis : {kTp, kPp, kRdp})
    if (shape.size(axis) == 1) axes &= ~axis;
  return axes;
}

}  // namespace

ProcessMesh::ProcessMesh(collectives::Communicator& world, const MeshShape& shape,
                         const Placement& placement)
    : world_(world), shape_(shape), placement_(placement) {
  SHOAL_CHECK(shape.size() == world.size(), "a mesh of rdp {} x pp {} x tp {} = {} ranks on {}",
              shape.rdp, shape.pp, shape.tp, shape.size(), world.size());
  place_ = placement.place_of(world.rank(), shape);
  tp_ = make(kTp);
  pp_ = make(kPp);
  rdp_ = make(kRdp);
  mp_ = make(kMp);
  dp_ = make(kDp);
}

collectives::Communicator* ProcessMesh::make(Axes asked) {
  const Axes axes = effective(asked, shape_);
  if (shape_.size(axes) == world_.size()) return &world_;
  for (const auto& [known, communicator] : made_)
    if (known == axes) return communicator;
  owned_.push_back(
      world_.split(placement_.group_index(world_.rank(), axes, shape_), world_.rank()));
  made_.emplace_back(axes, owned_.back().get());
  return owned_.back().get();
}

}  // namespace shoal::parallel
