#include "shoal/collectives/backend/native/engine.h"

#include <algorithm>
#include <vector>

#include "shoal/collectives/backend/native/counts.h"
#include "shoal/collectives/backend/native/messages.h"
#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::native {
namespace {

using std::chrono::milliseconds;

constexpr auto kCheckEvery = milliseconds(5);

}  // namespace

Engine::Engine(std::shared_ptr<Group> group, PlanChoice choice, double deadline_seconds,
               FlightRecorder flight, std::uint32_t first_sequence)
    : EngineBase("native", deadline_seconds),
      group_(std::move(group)),
      choice_(std::move(choice)),
      spins_(transport::suitable_spins(group_->size(), group_->cores())),
      reduction_(make_rank_reduction(choice_.fixed_order())),
      buffers_(static_cast<std::size_t>(group_->size())),
      pool_(*this),
      messages_(std::make_unique<Messages>(group_, flight_)),
      next_sequence_(first_sequence),
      agreed_(first_sequence - 1),
      flight_(std::move(flight)) {
  progress_.start();
}

Engine::~Engine() { stop(); }

WorkPtr Engine::submit(Call&& call, std::unique_ptr<Fusion> fusion) {
  WorkPtr work;  // declared first: a throw must release the lock before it destroys the Work
  bool peers_need_more;
  {
    const std::lock_guard lock(lock_);
    throw_if_failed();
    QueuedOperation& operation = pool_.take();
    work.reset(&operation.work);
    operation.sequence = next_sequence_;
    operation.call = std::move(call);
    operation.repeats = 0;
    operation.fusion = std::move(fusion);
    check_aborted(operation);
    progress_.count_in_flight(1);
    progress_.driven();
    if (is_message(operation.call.operation)) {
      guarded([&] {
        messages_->post(operation);
        drive_messages();
      });
    } else {
      ++next_sequence_;
      const bool is_head = queue_.empty();
      queue_.push_back(operation);
      if (is_head) advance();
    }
    peers_need_more = !operation.exchanged_inline;  // true also if it is not published yet
  }
  progress_.submitted(peers_need_more);
  return work;
}

bool Engine::test(QueuedOperation& operation) {
  const double waited = seconds_since_first(operation.first_test);
  const bool late = waited > deadline_seconds_;
  const auto lock = late ? std::unique_lock(lock_) : std::unique_lock(lock_, std::try_to_lock);
  if (!lock) return false;  // the progress thread is driving
  if (operation.done.load()) return true;
  throw_if_failed();
  progress_.driven();
  Progress progress = Progress::step;
  // The steps are limited, because a caller of test() has other work to do.
  for (int steps = 0; steps < 8 && progress != Progress::none && !operation.done.load(); ++steps)
    progress = advance();
  if (operation.done.load()) return true;
  check_group(operation);
  if (late) fail(timeout_error(operation, waited));
  return false;
}

void Engine::abort(std::string_view reason) {
  // Does not take the lock: a waiting thread may hold it until its deadline.
  group_->broadcast_abort(reason);
}

void Engine::end_thread() {
  progress_.end([this] { transport::wake_always(group_->own_page()); });
}

void Engine::stop() {
  if (stopping_.exchange(true)) return;
  end_thread();
  const std::lock_guard lock(lock_);
  if (!failure_)
    failure_ = Error(ErrorCode::aborted, "the Communicator was destroyed").at_rank(group_->rank());
  group_->close_memory();
  drop_queue();
  group_->close_links();
}

void Engine::leave(Engine* engine) {
  engine->stop();
  std::atomic<int>& orphans = engine->orphans_;
  {
    const std::lock_guard lock(engine->lock_);
    orphans.store(1);  // keeps the engine alive until this call ends
    for (const auto& operation : engine->pool_.all()) {
      Holder holder = Holder::caller;
      orphans.fetch_add(1);
      if (!operation->holder.compare_exchange_strong(holder, Holder::orphan)) orphans.fetch_sub(1);
    }
  }
  if (orphans.fetch_sub(1) == 1) delete engine;
}

// Never blocks on the lock, which a thread in Work::wait() may hold until its deadline. If enter()
// fails, this call exchanges `holder` atomically instead.
void Engine::release(QueuedOperation& operation) {
  if (lock_.enter()) {
    const bool held = operation.holder.load(std::memory_order_relaxed) == Holder::caller;
    if (held) operation.holder.store(Holder::none, std::memory_order_release);
    lock_.leave();
    if (held) return;  // the engine may be deleted from here on
  }
  if (operation.holder.exchange(Holder::none) == Holder::orphan && orphans_.fetch_sub(1) == 1)
    delete this;
}

CommunicatorStatistics Engine::statistics() const {
  const std::lock_guard lock(lock_);
  CommunicatorStatistics statistics = statistics_;
  if (!last_route_) return statistics;
  const Algorithm algorithm = *last_route_ == Route::inlined ? Algorithm::inlined
                              : *last_route_ == Route::ring  ? Algorithm::ring
                                                             : Algorithm::direct;
  statistics.algorithm = to_string(algorithm);
  statistics.why = choice_.why(flight_.newest(), algorithm, *last_route_ == Route::zero_copy);
  return statistics;
}

Engine::Progress Engine::advance() {
  if (failure_) return Progress::none;
  Progress progress = Progress::none;
  guarded([&] {
    const bool moved = drive_messages();
    if (!queue_.empty()) progress = advance_head();
    if (moved && progress == Progress::none) progress = Progress::step;
  });
  return progress;
}

bool Engine::drive_messages() {
  if (messages_->idle()) return false;
  std::vector<QueuedOperation*> finished;
  const bool moved = messages_->progress(finished);
  for (QueuedOperation* message : finished) {
    ++statistics_.operations;
    statistics_.by_progress_thread += background_;
    progress_.count_in_flight(-1);
    message->done.store(true);
    pool_.put_back(*message);
  }
  return moved;
}

Engine::Progress Engine::advance_head() {
  QueuedOperation& head = queue_.front();
  if (!head.published) {
    if (!has_room(head.sequence)) return Progress::none;
    publish_descriptor(head);
    return Progress::step;
  }
  if (head.exchanged_inline) {
    if (!exchange_when_matched(head)) return Progress::none;
    finish_exchange(FlightRecorder::now());
    return Progress::finished;
  }
  if (!head.plan && !make_plan_when_matched(head)) return Progress::none;
  if (!step_ready(head)) return Progress::none;
  check_before_step(head);
  run_step(head);
  ++head.step;
  // After an inlined operation's last step, the place need not be published: the next operation's
  // place implies it.
  if (head.step < head.plan->steps() || head.plan->route() != Route::inlined)
    group_->publish(transport::place_of(head.sequence, head.step));
  if (head.step < head.plan->steps()) return Progress::step;
  finish_head(head.plan->route(), head.plan->bounced_bytes());
  return Progress::finished;
}

// Adds the operation's name to an error, for example if a peer whose memory the step uses ends.
void Engine::run_step(QueuedOperation& head) {
  guarded([&] {
    try {
      head.plan->run(head.step);
    } catch (Error& error) {
      throw error.in_operation(named(head));
    }
  });
}

void Engine::publish_descriptor(QueuedOperation& operation) {
  const Call& call = operation.call;
  if (operation.fusion) operation.fusion->pack();
  const int rank = group_->rank(), size = group_->size();
  transport::ControlSlot& slot = group_->slot(rank, operation.sequence);
  transport::Descriptor& d = slot.descriptor;
  static_cast<Signature&>(d) = signature_of(call);
  d.sequence = operation.sequence;
  d.number = number_of(operation);
  d.step = call.outer.has_value();
  d.factor = call.factor;
  d.send = d.recv = transport::Location{};
  write_counts(call, slot);
  const bool fits = travels_inline(call, size, choice_);
  d.algorithm = static_cast<std::uint8_t>(choice_.signature_algorithm(call, fits));
  // A fused call is not exchanged inline: peers must also compare more than the first line holds.
  // Its buffer is symmetric.
  const bool inlined = fits && !operation.fusion;
  operation.exchanged_inline = inlined && exchanges_inline(call);
  // The locations are needed too if another rank of an all_to_all_v sends more than fits inline.
  if (!inlined || call.operation == Operation::all_to_all_v) {
    const std::int64_t send_bytes = call.send_bytes(rank, size);
    const std::int64_t recv_bytes = call.recv_bytes(rank, size);
    const auto place = [this](const void* buffer, std::int64_t bytes) {
      const transport::Location location = group_->locate(buffer, bytes);
      return location.symmetric()
                 ? location
                 : transport::Location{
                       -1, static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(buffer))};
    };
    d.send = place(call.send, send_bytes);
    const bool same = call.send == call.recv && send_bytes == recv_bytes;
    d.recv = same ? d.send : place(call.recv, recv_bytes);
  }
  flight_.submitted(operation.sequence, d);
  operation.published = true;
  // Writes the first line last, and all at once: peers poll it, and each poll takes the cache line
  // away from this core.
  if (operation.exchanged_inline) {
    operation.layout = inline_layout(call, rank, size);
    operation.layout.write(call.send, rank, slot);
    repeated_.remember(call, d, operation.layout, rank, size);
  } else if (inlined) {
    write_inline_payload(call, size, call.send_bytes(rank, size), slot);
  }
  slot.first.history = transport::history_after(
      group_->slot(rank, operation.sequence - 1).first.history, transport::hash_of(d));
  slot.described.store(operation.sequence, std::memory_order_release);
  group_->publish(transport::place_of(operation.sequence, 0));
}

bool Engine::make_plan_when_matched(QueuedOperation& operation) {
  waits_for_ = -1;
  if (!group_->all_published(operation.sequence)) return false;
  for (int peer = 0; peer < group_->size(); ++peer)
    if (!matches(operation.sequence, peer) || !described(operation.sequence, peer)) return false;
  agreed_ = operation.sequence;
  const auto size = static_cast<std::size_t>(group_->size());
  std::ranges::fill(buffers_.send, nullptr);
  std::ranges::fill(buffers_.recv, nullptr);
  PlanContext context{*group_,
                      *reduction_,
                      operation.call,
                      operation.sequence,
                      buffers_.send,
                      buffers_.recv,
                      true,
                      true,
                      false,
                      {buffers_.send_symmetric.get(), size},
                      {buffers_.recv_symmetric.get(), size},
                      buffers_.send_address,
                      buffers_.recv_address,
                      buffers_.factors,
                      choice_};
  for (int peer = 0; peer < group_->size(); ++peer) {
    const transport::Descriptor& d = group_->slot(peer, operation.sequence).descriptor;
    const auto p = static_cast<std::size_t>(peer);
    buffers_.send_symmetric[p] = d.send.symmetric();
    buffers_.recv_symmetric[p] = d.recv.symmetric();
    buffers_.send_address[p] = static_cast<std::uint64_t>(d.send.offset);
    buffers_.recv_address[p] = static_cast<std::uint64_t>(d.recv.offset);
    buffers_.factors[p] = d.factor;
    context.all_send_symmetric = context.all_send_symmetric && d.send.symmetric();
    context.all_recv_symmetric = context.all_recv_symmetric && d.recv.symmetric();
    if (peer == operation.call.root) context.root_symmetric = d.send.symmetric();
    const auto resolve = [&](const transport::Location& location, std::byte*& pointer) {
      if (!location.symmetric() || peer == group_->rank()) return true;
      pointer = group_->resolve(peer, location);
      if (!pointer) waits_for_ = peer;
      return pointer != nullptr;
    };
    if (!resolve(d.send, buffers_.send[p])) return false;
    if (d.recv == d.send)
      buffers_.recv[p] = buffers_.send[p];
    else if (!resolve(d.recv, buffers_.recv[p]))
      return false;
  }
  if (operation.call.operation == Operation::all_to_all_v) check_pairs(operation);
  flight_.matched(operation.sequence);
  const auto own = static_cast<std::size_t>(group_->rank());
  buffers_.send[own] = static_cast<std::byte*>(const_cast<void*>(operation.call.send));
  buffers_.recv[own] = static_cast<std::byte*>(operation.call.recv);
  if (context.single_copy(largest_send_bytes(operation.call, group_->size()))) {
    const Call& call = operation.call;
    if (!context.send_symmetric[own])
      huge_pages_.used(call.send, call.send_bytes(group_->rank(), group_->size()));
    if (!context.recv_symmetric[own] && call.recv != call.send)
      huge_pages_.used(call.recv, call.recv_bytes(group_->rank(), group_->size()));
  }
  operation.plan = make_plan(std::move(context), choice_);
  return true;
}

bool Engine::step_ready(const QueuedOperation& operation) const {
  return blocking_peer(operation) < 0;
}

int Engine::blocking_peer(const QueuedOperation& operation) const {
  const auto place = [&](std::uint32_t steps) {
    return transport::place_of(operation.sequence, steps);
  };
  if (!operation.published) {
    const int peer =
        group_->first_behind(transport::place_of(operation.sequence - transport::kLead, 0));
    return peer >= 0 ? peer : waits_for_;
  }
  if (!operation.plan) {
    const int source = operation.exchanged_inline ? only_source(operation.call) : -1;
    const int peer = source < 0 ? group_->first_behind(place(0))
                     : transport::reached(group_->page(source).place.load(), place(0)) ? -1
                                                                                       : source;
    return peer >= 0 ? peer : waits_for_;
  }
  const Requirement needed = operation.plan->needs(operation.step);
  if (needed.all > 0) {
    const int peer = group_->first_behind(place(needed.all));
    if (peer >= 0) return peer;
  }
  const auto behind = [&](int peer, std::uint32_t steps) {
    return peer >= 0 && steps > 0 &&
           !transport::reached(group_->page(peer).place.load(), place(steps));
  };
  if (behind(needed.left, needed.left_steps)) return needed.left;
  if (behind(needed.right, needed.right_steps)) return needed.right;
  return -1;
}

bool Engine::may_progress() const {
  if (group_->aborted_by() || stopping_.load() || messages_->ready()) return true;
  if (queue_.empty()) return messages_->idle();
  return blocking_peer(queue_.front()) < 0;
}

void Engine::finish_head(Route route, std::int64_t bounced_bytes) {
  QueuedOperation& head = queue_.front();
  ++statistics_.operations;
  statistics_.inlined += route == Route::inlined;
  statistics_.zero_copy += route == Route::zero_copy;
  statistics_.bounced += route == Route::bounced;
  statistics_.ring += route == Route::ring;
  last_route_ = route;
  statistics_.bounced_bytes += bounced_bytes;
  statistics_.by_progress_thread += background_;
  if (route == Route::bounced && statistics_.bounced == 1 && group_->rank() == 0)
    log::once(log::Level::info, "native-bounce",
              fmt::format("native: {} goes through bounce slots, its buffers are not from "
                          "Communicator::memory_resource()",
                          describe(head.call)));
  flight_.finished(head.sequence);
  head.plan.reset();
  if (head.fusion) head.fusion->unpack();
  head.fusion.reset();
  retire_head();
}

void Engine::retire_head() {
  QueuedOperation& head = queue_.front();
  queue_.pop_front();
  progress_.count_in_flight(-1);
  head.done.store(true, std::memory_order_release);
  pool_.put_back(head);
}

// A fusion's buffer lies in the Communicator's memory, which a Work may outlive.
void Engine::drop_queue() {
  for (; !queue_.empty(); queue_.pop_front()) {
    queue_.front().plan.reset();
    queue_.front().fusion.reset();
  }
}

void Engine::fail(const Error& error, const Blame& blame) {
  if (!failure_) {
    // If the lost rank aborted first, reports the abort.
    const auto by = error.code() == ErrorCode::peer_lost ? group_->aborted_by() : std::nullopt;
    failure_ = by ? abort_of(*by).in_operation(error.operation()) : error;
    if (error.rank() < 0) failure_->at_rank(group_->member(group_->rank()));
    if (error.operation().empty() && !queue_.empty()) failure_->in_operation(named(queue_.front()));
    if (failure_->code() != ErrorCode::aborted) group_->say_last_words(failure_->what());
    flight_.failed(failure_->what(), blame);
    group_->close_memory();
    drop_queue();
    messages_->clear();
    progress_.none_in_flight();
  }
  throw Error(*failure_);
}

void Engine::check_aborted(const QueuedOperation& operation) {
  if (const auto by = group_->aborted_by()) fail(abort_of(*by).in_operation(named(operation)));
}

Error Engine::abort_of(int peer) const {
  const int member = group_->member(peer);
  return Error(ErrorCode::aborted,
               fmt::format("rank {} aborted: {}", member, group_->last_words(peer)))
      .at_rank(group_->member(group_->rank()))
      .with_peer(member);
}

void Engine::check_group(const QueuedOperation& operation) {
  const auto now = Clock::now();
  if (now < next_check_) return;
  next_check_ = now + kCheckEvery;
  check_aborted(operation);
  guarded([&] {
    group_->poll_links();
    if (!queue_.empty()) check_peers(queue_.front());
  });
}

void Engine::check_peers(const QueuedOperation& head) {
  // Two rounds over the ranks. The first looks for dead ranks only, because a failed rank may have
  // failed because of them.
  const int size = group_->size();
  for (int i = 0; i < 2 * size; ++i) {
    const int peer = i % size;
    const transport::LinkState state = group_->link_state(peer);
    const bool over =
        state != transport::LinkState::open || (i >= size && group_->has_failed(peer));
    if (peer == group_->rank() || !over) continue;
    // The loss matters only once the head operation waits for that peer. Shared memory outlives its
    // owner, so operations that the peer finished before it left remain valid.
    const int blocking = blocking_peer(head);
    if (blocking < 0) return;
    const auto target = transport::place_of(head.sequence, head.plan ? head.plan->steps() : 0);
    if (peer != blocking && transport::reached(group_->page(peer).place.load(), target)) continue;
    fail_with(peer, state, head);
  }
}

void Engine::if_unlocked(const std::function<void()>& body) {
  if (!lock_.try_lock_as_guest()) return;
  const std::lock_guard lock(lock_, std::adopt_lock);
  body();
}

// Returns false if another thread drives. Retrying at once could take the core from that thread: if
// ranks outnumber cores, it may hold the lock without running.
bool Engine::drive() {
  transport::Backoff backoff(0, group_->sleepers_fence(), true);
  std::uint32_t moves = 0;
  while (progress_.undisturbed()) {
    {
      if (!lock_.try_lock_as_guest()) return false;
      const std::lock_guard lock(lock_, std::adopt_lock);
      if (queue_.empty() && messages_->idle()) return true;
      background_ = true;
      bool stuck = false;
      try {
        stuck = advance() == Progress::none;
        if ((stuck || ++moves % 64 == 0) && !(queue_.empty() && messages_->idle()))
          check_group(queue_.empty() ? messages_->first() : queue_.front());
      } catch (const std::exception&) {
        stuck = false;  // failure_ keeps the error; the next call on any thread throws it
      }
      background_ = false;
      if (!stuck) continue;
    }
    backoff.pause(group_->own_page(), kSleepMilliseconds, [this] {
      bool ready = true;  // stays true if another thread drives
      if_unlocked(
          [&] { ready = progress_.waiters.load() > 0 || progress_.ends() || may_progress(); });
      return ready;
    });
  }
  return true;
}

}  // namespace shoal::collectives::native
