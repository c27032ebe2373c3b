// The engine's errors if ranks call different operations, die, or do not come in time.
#include <algorithm>
#include <vector>

#include <fmt/ranges.h>

#include "shoal/collectives/backend/native/counts.h"
#include "shoal/collectives/backend/native/engine.h"
#include "shoal/collectives/backend/native/messages.h"

namespace shoal::collectives::native {

std::uint32_t number_of(const QueuedOperation& operation) {
  return operation.call.outer ? operation.call.outer->number : operation.sequence;
}

std::string named(const QueuedOperation& operation) {
  return fmt::format("{} (#{})", describe(operation.call), number_of(operation));
}

void Engine::name_mismatch(std::uint32_t sequence, int peer) {
  const transport::Descriptor& own = group_->slot(group_->rank(), sequence).descriptor;
  const transport::Descriptor& theirs = group_->slot(peer, sequence).descriptor;
  std::string text = fmt::format(
      "ranks called different operations: rank {} called {}, rank {} called {}",
      group_->member(group_->rank()), describe(own), group_->member(peer), describe(theirs));
  if (describe(own) == describe(theirs)) {
    if (theirs.algorithm != own.algorithm)
      text += fmt::format(" (with algorithm {} and {})",
                          to_string(static_cast<Algorithm>(own.algorithm)),
                          to_string(static_cast<Algorithm>(theirs.algorithm)));
    if (own.step) text += " with other counts or options";
  }
  if (!own.step && theirs.operation == own.operation && theirs.counts != own.counts)
    text += has_counts(own.operation) ? counts_difference(*group_, sequence, peer)
                                      : ", fused of other calls of a group";
  fail(Error(ErrorCode::mismatch, text, "call the same operations in the same order on every rank")
           .at_rank(group_->member(group_->rank()))
           .with_peer(group_->member(peer))
           .in_operation(fmt::format("{} (#{})", describe(own), own.number)));
}

void Engine::check_pairs(const QueuedOperation& operation) {
  const auto wrong = unequal_pair(*group_, operation.sequence);
  if (!wrong) return;
  fail(Error(ErrorCode::mismatch, wrong->text, "let what a rank sends be what its peer receives")
           .at_rank(group_->member(group_->rank()))
           .with_peer(group_->member(wrong->peer))
           .in_operation(named(operation)));
}

void Engine::check_before_step(const QueuedOperation& head) {
  check_aborted(head);
  const auto target = transport::place_of(head.sequence, head.plan->steps());
  for (int peer = 0; peer < group_->size(); ++peer)
    if (group_->has_failed(peer) && peer != group_->rank() &&
        !transport::reached(group_->page(peer).place.load(), target))
      fail_with(peer, transport::LinkState::open, head);
}

void Engine::check_before_running_ahead(const QueuedOperation& head) {
  for (int peer = 0; peer < group_->size(); ++peer)
    if (group_->has_failed(peer) && peer != group_->rank() &&
        !transport::reached(group_->page(peer).place.load(), transport::place_of(head.sequence, 0)))
      fail_with(peer, transport::LinkState::open, head);
}

void Engine::fail_with(int peer, transport::LinkState state, const QueuedOperation& head) {
  // The peer may have given up because of an operation in which this rank did not wait for the
  // peer.
  const std::uint32_t theirs = transport::sequence_of(group_->page(peer).place.load());
  const std::uint32_t newest = transport::sequence_of(group_->own_page().place.load());
  if (!transport::before(newest, theirs) && transport::before(newest - transport::kLead, theirs) &&
      group_->published(peer, theirs))
    (void)matches(theirs, peer);
  fail(lost(peer, state, head),
       {state == transport::LinkState::lost ? Blame::Kind::died : Blame::Kind::none,
        {group_->member(peer)}});
}

Error Engine::lost(int peer, transport::LinkState state, const QueuedOperation& head) const {
  const std::string words = group_->last_words(peer);
  Error error(ErrorCode::peer_lost,
              fmt::format("rank {} {} ({})", group_->member(peer),
                          state == transport::LinkState::open   ? "failed"
                          : state == transport::LinkState::lost ? "died"
                                                                : "left the group",
                          words.empty() ? whereabouts(peer) : "its last words: " + words),
              "look at that rank's own output for the cause");
  return error.at_rank(group_->member(group_->rank()))
      .with_peer(group_->member(peer))
      .in_operation(named(head));
}

std::string Engine::whereabouts(int peer) const {
  const std::uint64_t place = group_->page(peer).place.load();
  const std::uint32_t sequence = transport::sequence_of(place);
  if (place == 0) return "it has not called anything yet";
  const transport::ControlSlot& slot = group_->slot(peer, sequence);
  if (slot.described.load(std::memory_order_acquire) != sequence)
    return fmt::format("it has not said yet what its operation {} is", sequence);
  const transport::Descriptor& last = slot.descriptor;
  const std::string what = fmt::format("{} (#{})", describe(last), last.number);
  if (!queue_.empty() && queue_.front().sequence == sequence)
    return fmt::format("it is in step {} of {}", static_cast<std::uint32_t>(place), what);
  return "it last called " + what;
}

Error Engine::timeout_error(const QueuedOperation& operation, double waited) const {
  if (is_message(operation.call.operation)) return message_timeout(operation, waited);
  const QueuedOperation& head = queue_.empty() ? operation : queue_.front();
  std::vector<std::string> missing;
  int first = -1;
  const int source = head.published && head.exchanged_inline ? only_source(head.call) : -1;
  const auto target = [&](int peer) {
    if (!head.published) return transport::place_of(head.sequence - transport::kLead, 0);
    if (!head.plan) return transport::place_of(head.sequence, 0);
    const Requirement needed = head.plan->needs(head.step);
    std::uint32_t steps = needed.all;
    if (peer == needed.left) steps = std::max(steps, needed.left_steps);
    if (peer == needed.right) steps = std::max(steps, needed.right_steps);
    return transport::place_of(head.sequence, steps);
  };
  for (int peer = 0; peer < group_->size(); ++peer) {
    const bool behind = !transport::reached(group_->page(peer).place.load(), target(peer));
    const bool owes = !head.plan && peer == waits_for_;
    if (peer == group_->rank() || (source >= 0 && peer != source) || (!behind && !owes)) continue;
    if (first < 0) first = peer;
    const bool said = group_->slot(peer, head.sequence).described.load(std::memory_order_acquire) ==
                      head.sequence;
    missing.push_back(fmt::format(
        "rank {} ({})", group_->member(peer),
        behind || !said ? whereabouts(peer) : "the memory it calls with has not been mapped"));
  }
  Error error(ErrorCode::timeout,
              fmt::format("{} did not finish within {:.1f} s; missing: {}", named(head), waited,
                          fmt::join(missing, ", ")),
              "see what those ranks do, or raise SHOAL_DEADLINE_S");
  error.at_rank(group_->member(group_->rank())).in_operation(named(operation));
  if (first >= 0) error.with_peer(group_->member(first));
  return error;
}

Error Engine::message_timeout(const QueuedOperation& operation, double waited) const {
  const int peer = operation.call.root;
  const std::string name = message_name(operation, *group_);
  return Error(ErrorCode::timeout,
               fmt::format("{} did not finish within {:.1f} s; rank {} has not {} it ({})", name,
                           waited, group_->member(peer),
                           operation.call.operation == Operation::send ? "received" : "sent",
                           whereabouts(peer)),
               "see what that rank does, or raise SHOAL_DEADLINE_S")
      .at_rank(group_->member(group_->rank()))
      .with_peer(group_->member(peer))
      .in_operation(name);
}

}  // namespace shoal::collectives::native
