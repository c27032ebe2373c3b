#include "shoal/collectives/backend/device/device_engine.h"

#include <algorithm>

#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::device {
namespace {

// The signature that ranks compare. A group's signature is that of its first call, with a hash of
// all its calls.
Signature signature_of_all(const std::vector<Call>& calls) {
  Signature first = signature_of(calls.front());
  if (calls.size() == 1) return first;
  std::vector<std::int64_t> numbers;
  for (const Call& call : calls) {
    const Signature s = signature_of(call);
    numbers.insert(numbers.end(),
                   {static_cast<std::int64_t>(s.operation), static_cast<std::int64_t>(s.dtype),
                    static_cast<std::int64_t>(s.reduce), s.root, s.count,
                    static_cast<std::int64_t>(s.counts)});
  }
  first.counts = hash_counts(numbers);
  return first;
}

// Uses exact sizes, because pools round allocations finely and the number of slices depends on the
// size.
std::uint64_t kind_of_all(const std::vector<Call>& calls, int rank, int size) {
  std::vector<std::int64_t> numbers;
  for (const Call& call : calls)
    numbers.insert(
        numbers.end(),
        {static_cast<std::int64_t>(call.operation), static_cast<std::int64_t>(call.dtype),
         static_cast<std::int64_t>(call.op), call.root, call.send_bytes(rank, size),
         call.recv_bytes(rank, size), static_cast<std::int64_t>(hash_counts(call.counts))});
  return hash_counts(numbers);
}

}  // namespace

kernels::ReductionKernels& DeviceReductions::get() {
  if (device_.is_cpu()) {
    if (!host_) host_ = make_rank_reduction(fixed_order_);
    return *host_;
  }
  if (!table_) {
    kernels::CudaKernelOptions options;
    options.device = device_;
    table_ = kernels::make_cuda_kernels(options);
  }
  return table_->reduction();
}

DeviceEngine::DeviceEngine(std::unique_ptr<Communicator> inner, Setup setup)
    : setup_(std::move(setup)),
      rank_(inner->rank()),
      size_(inner->size()),
      backend_(device_backend(device().type)),
      inner_(std::move(inner)),
      access_(make_peer_access(device())),
      memory_(access_, setup_.stream, setup_.counted_by),
      own_pinned_(device().is_cpu() ? make_host_memory()
                  : setup_.pinned   ? nullptr
                                    : make_pinned_memory()),
      staging_(own_pinned_ ? *own_pinned_ : *setup_.pinned),
      reductions_(device(), setup_.fixed_order),
      in_(device(), StreamPriority::high),
      out_(device(), StreamPriority::high) {
  setup_.family->join(inner_);
  meet();
  if (direct_)
    direct_messages_ = std::make_unique<DirectMessages>(DirectMessages::Setup{
        .inner = inner_.get(),
        .opened = opened_.get(),
        .staging = &staging_,
        .in = in_.view(),
        .out = out_.view(),
        .place_of = [this](const void* data, std::int64_t bytes) { return place_of(data, bytes); },
        .end = [this](DeviceOperation& one, bool staged) { end_message(one, staged); }});
  if (!device().is_cpu() && setup_.gates) {
    const std::string why = why_no_stream_gates(device());
    gates_ = why.empty();
    if (!gates_)
      log::once(log::Level::info, "device-no-gates",
                fmt::format("threads wait for collectives on {}, whose streams cannot: {}",
                            to_string(device()), why));
  }
  thread_ = std::thread([this] { run(); });
}

DeviceEngine::~DeviceEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  // After a failure, work that uses other ranks' memory and the staging buffers may still be
  // running.
  for (const OwnedStream* stream : {&in_, &out_}) try {
      backend_.synchronize(stream->view());
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is lost
    }
  opened_->close();
  if (others_have_closed()) memory_.segments().closed_elsewhere();
}

// Memory that other processes have open should not be freed before they have closed it. Ranks
// mostly end together. A missing rank is not awaited for long, and after a failure no rank can be
// asked.
bool DeviceEngine::others_have_closed() noexcept {
  const bool were_open = direct_ || levels_ || (rdma_ && neighbours_);
  if (!processes_ || placement_->nodes() == size_ || !were_open || failure_) return false;
  try {
    (levels_ ? *levels_->node : *inner_)
        .barrier()
        ->wait(Deadline::in_seconds(deadlines::kOthersClose));
    return true;
  } catch (const std::exception& error) {
    log::debug("ranks did not end together: {}", error.what());
    return false;
  }
}

CommunicatorStatistics DeviceEngine::statistics() const {
  const std::lock_guard lock(mutex_);
  CommunicatorStatistics statistics = statistics_;
  if (direct_) statistics.transport = processes_ ? access_->name() : "memory of one process";
  return statistics;
}

std::shared_ptr<DeviceOperation> DeviceEngine::submit(Call&& call) {
  std::vector<Call> one;
  one.push_back(std::move(call));
  return submit(std::move(one));
}

bool DeviceEngine::may_join(const std::vector<Call>& calls) const {
  return direct_ && std::ranges::all_of(calls, [&](const Call& call) {
           return !is_message(call.operation) && call.operation != Operation::barrier &&
                  call.stream.handle == calls.front().stream.handle && may_be_direct(call);
         });
}

// Called by the thread that makes the calls.
std::shared_ptr<DeviceOperation> DeviceEngine::submit(std::vector<Call> calls) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(*failure_).in_operation(describe(calls.front()));
  }
  const std::uint64_t kind = kind_of_all(calls, rank_, size_);
  auto operation =
      std::make_shared<DeviceOperation>(std::move(calls), ++submitted_, kind, device());
  make_reachable(*operation);
  operation->ready.record(operation->call().stream);
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_).in_operation(describe(operation->call()));
  (is_message(operation->call().operation) ? arriving_ : collectives_).push_back(operation);
  wake_.notify_one();
  return operation;
}

bool DeviceEngine::test(const DeviceOperation& operation) {
  if (!operation.over.load(std::memory_order_acquire)) return false;
  if (operation.failure) throw Error(*operation.failure);
  return true;
}

void DeviceEngine::wait(DeviceOperation& operation, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return operation.over.load(); };
  if (!is_over()) setup_.family->count_wait();
  const auto wait_until = [&](Clock::time_point time) {
    if (time != Clock::time_point::max()) return over_.wait_until(lock, time, is_over);
    over_.wait(lock, is_over);
    return true;
  };
  if (!wait_until(deadline.time())) {
    give_up_at_ = std::min(give_up_at_.load(), deadline.time());
    wake_.notify_one();
    if (!wait_until(Clock::now() + deadlines::kDeviceTellsWhoIsMissing))
      throw Error(ErrorCode::timeout, "the device did not come to an end",
                  "see what else runs on it, or raise SHOAL_DEADLINE_S")
          .at_rank(rank_)
          .in_operation(describe(operation.call()));
  }
  lock.unlock();
  (void)test(operation);
}

// The first operation of a kind allocates memory, opens peers' memory and loads kernels. Each may
// wait for the whole device, including a stream that waits for this operation. Such an operation
// therefore gets no gate.
void DeviceEngine::block_stream(DeviceOperation& operation, Stream stream) {
  std::shared_ptr<StreamGate> gate;
  const auto may_have_gate = [&] {
    return gates_ && !stream.device.is_cpu() && !operation.over && kinds_.contains(operation.kind);
  };
  std::unique_lock lock(mutex_);
  if (may_have_gate() && !operation.gate) {
    // Makes the gate without the lock: the driver may wait for other gates, which the thread opens
    // under the lock.
    lock.unlock();
    gate = make_stream_gate(device());
    lock.lock();
    if (may_have_gate() && !operation.gate) operation.gate = std::move(gate);
  }
  gate = may_have_gate() ? operation.gate : nullptr;
  lock.unlock();
  if (gate)
    gate->block_stream(stream);
  else
    wait(operation, Deadline::in_seconds(setup_.deadline_seconds));
}

void DeviceEngine::abort(std::string_view reason) { abort_hosts(reason); }

void DeviceEngine::run() {
  for (;;) {
    std::shared_ptr<DeviceOperation> head;
    {
      std::unique_lock lock(mutex_);
      const auto work = [this] {
        return !collectives_.empty() || !arriving_.empty() || has_messages();
      };
      wake_.wait(lock, [&] { return stop_ || work(); });
      if (!work()) return;
      if (!collectives_.empty()) head = collectives_.front();
    }
    try {
      if (head) {
        carry_out(*head);
        finish(*head);
        continue;
      }
      const auto more = [this] {
        const std::lock_guard lock(mutex_);
        return !collectives_.empty();
      };
      for (Backoff backoff; !more();) {
        if (progress_messages()) backoff = {};
        if (!has_messages()) break;
        if (is_late()) give_up_messages();
        backoff.take();
      }
    } catch (const Error& error) {
      fail(error);
    } catch (const std::exception& problem) {
      fail(Error(ErrorCode::internal, problem.what()).at_rank(rank_));
    }
  }
}

void DeviceEngine::step_of(std::optional<OuterCall> outer) {
  step_of_ = outer;
  backend_of(*inner_).on_behalf_of(outer);
}

void DeviceEngine::until(const Call& call, const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::in_seconds(setup_.deadline_seconds);
  for (Backoff backoff; !condition();) {
    if (progress_messages()) backoff = {};
    if (deadline.passed() || is_late()) device_is_late(describe(call) + " waits", describe(call));
    backoff.take();
  }
}

void DeviceEngine::give_up_messages() {
  if (direct_messages_) direct_messages_->give_up();
  for (const Message& message : messages_)
    if (message.work) message.work->wait(deadlines::at_once());  // throws, naming the missing ranks
  device_is_late("messages wait", "messages");
}

// No other rank can detect this: each would wait for this rank's part until its own deadline.
void DeviceEngine::device_is_late(const std::string& who_waits, const std::string& operation) {
  const Error late = Error(ErrorCode::timeout,
                           fmt::format("the work of {} that {} for did not finish in time",
                                       to_string(device()), who_waits),
                           "see what else runs on the device, or raise SHOAL_DEADLINE_S")
                         .at_rank(rank_)
                         .in_operation(operation);
  abort_hosts(late.message());
  throw Error(late);
}

void DeviceEngine::until_done(Work& work) try {
  for (Backoff backoff; !work.test();) {
    if (progress_messages()) backoff = {};
    if (is_late()) work.wait(deadlines::at_once());  // throws, naming the missing ranks
    backoff.take();
  }
} catch (const std::exception& problem) {
  // The error may belong to a message. The host's Communicator then still advances `work`, whose
  // buffers are mostly freed when this function's caller ends.
  give_up_hosts(problem);
  throw;
}

void DeviceEngine::carry_out(DeviceOperation& operation) {
  const Call& first = operation.call();
  step_of(OuterCall{signature_of_all(operation.calls), operation.number});
  bool direct = false;
  if (first.operation == Operation::barrier) {
    until(first, [&] { return operation.ready.query(); });
    until_done(*inner_->barrier());
    direct = true;
  } else if (direct_ && may_be_direct(first)) {
    // Waits until the buffers are ready, because peers read them as soon as they know the
    // addresses.
    until(first, [&] { return operation.ready.query(); });
    const std::vector<Reached> reached = exchange_places(operation.calls);
    direct = !reached.empty();
    if (direct) {
      carry_out_directly(operation.calls, reached);
      until_done(*inner_->barrier());  // no rank accesses others' memory any more
    }
  }
  if (!direct)
    for (const Call& call : operation.calls)
      if (!carry_out_by_levels(operation, call) && !carry_out_by_rdma(operation, call))
        stage(operation, call);
  copy_back(operation);
  const std::lock_guard lock(mutex_);
  statistics_.operations += std::ssize(operation.calls);
  for (std::size_t i = 0; direct && i < operation.calls.size(); ++i) {
    const Call& call = operation.calls[i];
    if (call.operation == Operation::barrier) continue;
    if (operation.copies.empty() || (!operation.copies[i].send && !operation.copies[i].recv)) {
      ++statistics_.zero_copy;
    } else {
      ++statistics_.bounced;
      statistics_.bounced_bytes += static_cast<std::int64_t>(operation.copies[i].send.size());
    }
  }
}

void DeviceEngine::finish(DeviceOperation& operation) {
  step_of({});
  operation.copies.clear();
  const std::lock_guard lock(mutex_);
  if (!collectives_.empty() && collectives_.front().get() == &operation) collectives_.pop_front();
  kinds_.insert(operation.kind);
  end(operation);
}

// Call with the lock held.
void DeviceEngine::end(DeviceOperation& operation) {
  operation.over.store(true, std::memory_order_release);
  if (operation.gate) operation.gate->open();
  over_.notify_all();
}

// Lets this rank's queued work end before the owners of its memory proceed. Waits only for the
// device, which may have failed.
void DeviceEngine::let_streams_end() noexcept try {
  for (const OwnedStream* stream : {&in_, &out_}) {
    Event done(device());
    done.record(stream->view());
    const Deadline deadline = Deadline::in_seconds(deadlines::kInFlightEnds);
    for (Backoff backoff; !done.query() && !deadline.passed();) backoff.take();
  }
} catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the device is lost
}

// Operations on the host's Communicators have failed, but one may still be moving data in memory
// about to be freed, or may not have told the other ranks. A barrier that is submitted now ends
// after that operation.
void DeviceEngine::let_hosts_end() noexcept {
  const auto end = [](Communicator* group) {
    try {
      if (group) group->barrier()->wait(Deadline::in_seconds(deadlines::kInFlightEnds));
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): already failed
    }
  };
  end(inner_.get());
  if (!levels_) return;
  end(levels_->node.get());
  end(levels_->rail.get());
}

// A rank that waits for this one in one group does not see errors of another group.
void DeviceEngine::give_up_hosts(const std::exception& problem) {
  const auto* const error = dynamic_cast<const Error*>(&problem);
  const auto is = [&](ErrorCode code) { return error && error->code() == code; };
  const bool known = is(ErrorCode::timeout) || is(ErrorCode::peer_lost) ||
                     is(ErrorCode::mismatch) || is(ErrorCode::aborted);
  if (!known || levels_) abort_hosts(error ? error->message() : problem.what());
  let_hosts_end();
}

// Opens the gates: streams behind them compute on undefined data, and the rank's next call or wait
// throws. Does not wait until neighbours have learned of the failure.
//
// Work that neighbours have queued, or queue before they learn of it, accesses only blocks of
// memory_. These blocks are not reused and exist until the neighbours have ended (segments.h).
// Pinned memory is used only by this rank's streams and its host Communicators.
void DeviceEngine::fail(const Error& error) {
  step_of({});
  memory_.stop_reuse();
  give_up_hosts(error);
  let_streams_end();
  slots_.clear();
  pass_.reset();
  bool unseen = false;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    const auto give_up = [&](DeviceOperation& operation) {
      if (operation.over) return;
      unseen = unseen || operation.gate;
      operation.failure = *failure_;
      end(operation);
    };
    for (const auto& operation : collectives_) give_up(*operation);
    for (const auto& operation : arriving_) give_up(*operation);
    for (const Message& message : messages_) give_up(*message.operation);
    if (direct_messages_) direct_messages_->drop(give_up);
    collectives_.clear();
    arriving_.clear();
    messages_.clear();
    over_.notify_all();
  }
  if (unseen) setup_.family->give_up(error);
}

}  // namespace shoal::collectives::device
