// The fast path of a small call that equals the previous one (repeated_call.h), and the wait for
// any exchange without a plan. The scalars of a training loop and benchmark loops take this path.
//
// If ranks share a core's two hardware threads, moving a cache line between them is nearly free, so
// instructions matter, locked ones above all. The path allocates nothing, counts no references, and
// reads only the flight recorder's clock.
#include "shoal/collectives/backend/native/engine.h"
#include "shoal/collectives/backend/native/messages.h"

namespace shoal::collectives::native {
namespace {

// Polls of the peers' lines alone, before everything else is polled too: about 2 us. The first
// polls follow each other without a pause, because a pause of 140 cycles is half as long as an
// exchange.
constexpr int kLooks = 64, kLooksWithoutPause = 16;

// If the compiler targets generic x86-64, __builtin_prefetch for writing prefetches for reading.
void take_for_writing(const std::byte* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*line));
#else
  __builtin_prefetch(line, 1);
#endif
}

// Prefetches, for writing, the lines that the next call of this kind will write. Peers that have
// read these lines still hold them; the prefetch overlaps with the wait for the peers' answers.
void take_for_writing(const transport::ControlSlot& slot, const InlineLayout& layout) {
  take_for_writing(reinterpret_cast<const std::byte*>(&slot.first));
  if (layout.first_line) return;
  for (std::int64_t at = 0; at < layout.written; at += 64) take_for_writing(slot.payload + at);
}

}  // namespace

WorkPtr Engine::repeat(const PlainCall& call) {
  WorkPtr work;  // declared first: a throw must release the lock before it destroys the Work
  bool waits = false;
  {
    const std::lock_guard lock(lock_);
    if (failure_ || !queue_.empty() || !repeated_.is_like(call) || group_->aborted_by() ||
        !has_room(next_sequence_))
      return nullptr;
    const std::uint32_t sequence = next_sequence_++;
    const int rank = group_->rank();
    // Publishes first, so that peers can answer during the rest of the submission.
    repeated_.write(call.send, rank, group_->slot(rank, sequence - 1).first.history,
                    group_->slot(rank, sequence));
    group_->publish(transport::place_of(sequence, 0));
    // Useless for a call with a root: no rank waits for the root's next write, and no rank reads
    // the other ranks' writes.
    if (call.kind.root() < 0 && spins_ > 0)
      take_for_writing(group_->slot(rank, sequence + 1), repeated_.layout());
    QueuedOperation& operation = pool_.take();
    work.reset(&operation.work);
    operation.sequence = sequence;
    const std::int64_t now = describe_repeated(operation, call);
    progress_.count_in_flight(1);
    progress_.driven();
    queue_.push_back(operation);
    guarded([&] {
      if (exchange_when_matched(operation)) finish_exchange(now);
    });
    waits = !queue_.empty();
  }
  if (waits) progress_.submitted(false);
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

// True once the operation is done. Messages and links wait meanwhile, hardly longer than for one
// step of a plan.
bool Engine::exchange_soon(QueuedOperation& operation) {
  if (failure_ || !operation.exchanged_inline || queue_.empty() || &queue_.front() != &operation)
    return false;
  const std::int64_t now = FlightRecorder::now();  // read here, while this thread waits anyway
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
    if (look >= kLooksWithoutPause) transport::relax();
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
