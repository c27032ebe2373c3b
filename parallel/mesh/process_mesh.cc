#include "shoal/parallel/mesh/process_mesh.h"

#include <charconv>
#include <string>
#include <string_view>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/device/captured_work.h"

namespace shoal::parallel {
namespace {

// Removes axes of size 1, so that groups of the same ranks are recognised as one group.
Axes effective(Axes axes, const MeshShape& shape) {
  for (const Axes axis : {kTp, kPp, kRdp})
    if (shape.size(axis) == 1) axes &= ~axis;
  return axes;
}

// Removes the prefix that a Communicator writes before an abort's reason, "rank 3 aborted: ", from
// `text`. Returns the rank, or -1 without such a prefix.
int take_rank(std::string_view& text) {
  constexpr std::string_view kBefore = "rank ", kAfter = " aborted: ";
  if (!text.starts_with(kBefore)) return -1;
  int rank = -1;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + kBefore.size(), end, rank);
  const std::string_view rest(at, static_cast<std::size_t>(end - at));
  if (error != std::errc() || !rest.starts_with(kAfter)) return -1;
  text = rest.substr(kAfter.size());
  return rank;
}

// First rank and reason of an abort: in "rank 2 aborted: rank 0 aborted: WHY" rank 2 passed it on.
struct Beginning {
  int rank = -1;
  std::string_view why;
  int passed_on = -1;  // number of ranks that passed it on; -1: not an abort
};
Beginning beginning_of(std::string_view message) {
  Beginning found{.why = message};
  for (int rank = take_rank(found.why); rank >= 0; rank = take_rank(found.why)) {
    found.rank = rank;
    ++found.passed_on;
  }
  return found;
}

const Error* as_abort(const std::exception& why) {
  const auto* const error = dynamic_cast<const Error*>(&why);
  return error != nullptr && error->code() == ErrorCode::aborted ? error : nullptr;
}

std::string reason_of(const std::exception& why) {
  if (const Error* const abort = as_abort(why)) {
    const Beginning from = beginning_of(abort->message());
    return from.rank < 0 ? abort->message()
                         : fmt::format("rank {} aborted: {}", from.rank, from.why);
  }
  const auto* const error = dynamic_cast<const Error*>(&why);
  return error != nullptr ? error->message() : why.what();
}

void give_up(collectives::Communicator& group, const std::string& reason) noexcept {
  try {
    if (group.size() > 1) group.abort(reason);
  } catch (const std::exception& problem) {  // e.g. the job's store is gone
    log::debug("the other ranks are not told why this one ends: {}", problem.what());
  }
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

std::shared_ptr<collectives::Communicator> ProcessMesh::split(collectives::Communicator& group,
                                                              int color, int key) const {
  std::shared_ptr<collectives::Communicator> made = group.split(color, key);
  const std::lock_guard lock(mutex_);
  std::erase_if(splits_, [](const auto& old) { return old.use_count() == 1; });
  if (made) splits_.push_back(made);
  return made;
}

bool ProcessMesh::abort(const std::exception& why) const noexcept {
  if (is_capturing()) return false;
  if (aborted_.exchange(true)) return true;
  try {
    const std::string reason = reason_of(why);
    // The world first: through it, every rank learns which rank began the abort.
    give_up(world_, reason);
    for (const auto& group : owned_) give_up(*group, reason);
    const std::lock_guard lock(mutex_);
    for (const auto& split : splits_) give_up(*split, reason);
  } catch (const std::exception& problem) {
    log::debug("the other ranks are not told why this one ends: {}", problem.what());
  }
  return true;
}

void ProcessMesh::throw_if_passed_on(const std::exception& why) const {
  const Error* const abort = as_abort(why);
  if (abort == nullptr) return;
  const Beginning from = beginning_of(abort->message());
  if (from.passed_on < 1) return;
  throw Error(ErrorCode::aborted, fmt::format("rank {} aborted: {}", from.rank, from.why))
      .at_rank(world_.rank())
      .with_peer(from.rank)
      .in_operation(abort->operation());
}

}  // namespace shoal::parallel
