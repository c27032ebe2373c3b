// How ranks that do not wait for each other stay close and in agreement.
//
// A rank that needs no other rank's data (the root of a small broadcast) is done once its data and
// signature lie in its slot. It continues with the next operation. A rank that needs one rank's
// data waits for that rank only. So not all signatures are compared while such an operation runs.
// Two mechanisms make up for that:
//   the lead:    A rank publishes operation t only after every rank has published t - kLead. Its
//                slots can then be reused (control.h). If peers never come, a rank runs at most
//                kLead operations ahead; then it waits, and fails at its deadline.
//   the history: Each slot carries a hash of all signatures so far, which a rank compares when it
//                reads another's slot. After two ranks have made different calls, their histories
//                stay different. They notice once one needs the other's data or checks for room;
//                both slots then still hold the call that differed.
#include "shoal/collectives/backend/native/engine.h"

namespace shoal::collectives::native {

// The loads of `place` acquire: a rank that has published an operation has read all that it needed
// of earlier ones, so this rank may rewrite the slots that it read. The loads are made only if the
// last known places no longer suffice: each takes a line from a core that is about to write it.
bool Engine::has_room(std::uint32_t sequence) {
  waits_for_ = -1;
  const std::uint32_t least = sequence - transport::kLead;
  if (!transport::before(agreed_, least)) return true;
  std::uint32_t newest = sequence - 1;
  for (int peer = 0; peer < group_->size(); ++peer) {
    const std::uint32_t theirs =
        transport::sequence_of(group_->page(peer).place.load(std::memory_order_acquire));
    if (transport::before(theirs, newest)) newest = theirs;
  }
  if (transport::before(newest, least)) return false;
  for (int peer = 0; peer < group_->size(); ++peer)
    if (!matches(newest, peer)) return false;
  agreed_ = newest;
  return true;
}

// Reads only slots of this rank's last kLead operations: no peer can be so far ahead that it
// rewrites one of those. The peer wrote the slot's history before it published the slot.
bool Engine::matches(std::uint32_t sequence, int peer) {
  const int rank = group_->rank();
  const auto history = [&](int of, std::uint32_t at) { return group_->slot(of, at).first.history; };
  if (history(peer, sequence) == history(rank, sequence)) return true;
  const std::uint32_t newest = transport::sequence_of(group_->own_page().place.load());
  for (std::uint32_t at = newest - transport::kLead + 1; !transport::before(sequence, at); ++at) {
    if (!group_->published(rank, at) || !group_->published(peer, at)) continue;
    if (history(peer, at) == history(rank, at)) continue;
    if (!described(at, peer)) return false;
    name_mismatch(at, peer);
  }
  throw_error(ErrorCode::internal, "native: rank {} has not published operation {}", peer,
              sequence);
}

bool Engine::described(std::uint32_t sequence, int peer) {
  const transport::ControlSlot& slot = group_->slot(peer, sequence);
  if (slot.described.load(std::memory_order_acquire) == sequence) return true;
  waits_for_ = peer;
  return false;
}

bool Engine::exchange_when_matched(const QueuedOperation& operation) {
  waits_for_ = -1;
  const std::uint32_t sequence = operation.sequence;
  const int source = only_source(operation.call);
  if (source == group_->rank()) {
    check_before_running_ahead(operation);
    return true;
  }
  fetch_inline_ahead(*group_, operation.call, sequence, operation.layout);
  if (source >= 0) {
    if (!group_->published(source, sequence) || !matches(sequence, source)) return false;
  } else {
    if (!group_->all_published(sequence)) return false;
    for (int peer = 0; peer < group_->size(); ++peer)
      if (peer != group_->rank() && !matches(sequence, peer)) return false;
    agreed_ = sequence;
  }
  run_inline_exchange(*group_, *reduction_, choice_.fixed_order(), operation.call, sequence,
                      operation.layout);
  return true;
}

}  // namespace shoal::collectives::native
