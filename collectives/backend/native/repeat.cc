// The short way of a small call that is like the one before it (repeated_call.h), and the wait for
// any exchange without a plan: what a training loop's scalars and a benchmark's loop take.
//
// What counts here are instructions and locked instructions, for between two threads of one core a
// cache line's way is nearly free: nothing is allocated, no owner is counted, no clock is read but
// the flight recorder's.
#include "shoal/collectives/backend/native/engine.h"
#include "shoal/collectives/backend/native/messages.h"

namespace shoal::collectives::native {
namespace {

// Looks at the peers' lines before everything else is looked at, too: about 2 us.
constexpr int kLooks = 64;

// (__builtin_prefetch for writing only reads where the compiler's target is any x86-64.)
void take_for_writing(const std::byte* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*line));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Begins to take the lines that the next call of this kind will write back from the peers that have
// read them, while these are about to answer.
void take_for_writing(const transport::ControlSlot& slot, const InlineLayout& layout) {
  take_for_writing(reinterpret_cast<const std::byte*>(&slot.first));
  if (layout.first_line) return;
  for (std::int64_t at = 0; at < layout.written; at += 64) take_for_writing(slot.payload + at);
}

}  // namespace

WorkPtr Engine::repeat(const PlainCall& call) {
  WorkPtr work;  // destroyed, where this throws, after the lock is free
  bool parked = false;
  {
    const std::lock_guard lock(lock_);
    if (failure_ || !queue_.empty() || !repeated_.is_like(call) || group_->aborted_by() ||
        !has_room(next_sequence_))
      return nullptr;
    const std::uint32_t sequence = next_sequence_++;
    const int rank = group_->rank();
    // Peers begin to answer before the rest of the submission is done.
    repeated_.write(call.send, rank, group_->slot(rank, sequence - 1).first.history,
                    group_->slot(rank, sequence));
    group_->publish(transport::place_of(sequence, 0));
    // Nobody waits for what a root writes next, nor reads what others do.
    if (call.kind.root < 0 && spins_ > 0)
      take_for_writing(group_->slot(rank, sequence + 1), repeated_.layout());
    QueuedOperation& operation = pool_.take();
    work.reset(&operation.work);
    operation.sequence = sequence;
    const std::int64_t now = describe_repeated(operation, call);
    count_in_flight(1);
    drive_begins();
    queue_.push_back(operation);
    guarded([&] {
      if (exchange_when_matched(operation)) finish_exchange(now);
    });
    parked = !queue_.empty() && naps_.parked();
  }
  if (parked) naps_.wake_up();
  return work;
}

std::int64_t Engine::describe_repeated(QueuedOperation& operation, const PlainCall& call) {
  transport::ControlSlot& slot = group_->slot(group_->rank(), operation.sequence);
  transport::Descriptor& d = slot.descriptor;
  static_cast<Signature&>(d) = repeated_.signature();
  d.sequence = d.number = operation.sequence;
  d.step = false;
  d.factor = 1;
  d.send = d.recv = transport::Location{};
  slot.described.store(operation.sequence, std::memory_order_release);
  const std::int64_t now = flight_.submitted(operation.sequence, d);
  operation.published = operation.exchanged_inline = true;
  if (operation.repeats != repeated_.number()) {
    operation.repeats = repeated_.number();
    operation.call = repeated_.call();
    operation.layout = repeated_.layout();
  }
  operation.call.send = call.send;
  operation.call.recv = call.recv;
  return now;
}

// True when it is done. Messages and links have to wait meanwhile, hardly longer than for a step.
bool Engine::exchange_soon(QueuedOperation& operation) {
  if (failure_ || !operation.exchanged_inline || queue_.empty() || &queue_.front() != &operation)
    return false;
  const std::int64_t now = FlightRecorder::now();  // while there is time
  const int source = only_source(operation.call);
  for (int look = 0; look < kLooks; ++look) {
    if (source < 0 ? group_->all_published(operation.sequence)
                   : group_->published(source, operation.sequence)) {
      bool done = false;
      guarded([&] {
        done = exchange_when_matched(operation);
        if (done) finish_exchange(now);
      });
      return done;
    }
    transport::relax();
  }
  return false;
}

void Engine::finish_exchange(std::int64_t when) {
  ++statistics_.operations;
  ++statistics_.inlined;
  statistics_.by_progress_thread += background_;
  last_route_ = Route::inlined;
  flight_.finished(queue_.front().sequence, when);
  retire_head();
}

}  // namespace shoal::collectives::native
