#include "shoal/collectives/backend/device/device_engine.h"

#include <algorithm>

#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives {
namespace {

// What ranks compare: of a group its first call, and a hash of all.
Signature signature_of_all(const std::vector<Call>& calls) {
  Signature first = signature_of(calls.front());
  if (calls.size() == 1) return first;
  std::vector<std::int64_t> numbers;
  for (const Call& call : calls) {
    const Signature s = signature_of(call);
    numbers.insert(numbers.end(),
                   {static_cast<std::int64_t>(s.operation), static_cast<std::int64_t>(s.dtype),
                    s.reduce, s.root, s.count, static_cast<std::int64_t>(s.counts)});
  }
  first.counts = hash_counts(numbers);
  return first;
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
      steps_(dynamic_cast<CallCommunicator*>(inner_.get())),
      access_(make_peer_access(device())),
      memory_(access_, setup_.stream, setup_.counted_by),
      pinned_(device().is_cpu() ? make_host_memory() : make_pinned_memory()),
      staging_(*pinned_),
      reductions_(device(), setup_.fixed_order),
      in_(device(), StreamPriority::high),
      out_(device(), StreamPriority::high) {
  meet();
  thread_ = std::thread([this] { run(); });
}

DeviceEngine::~DeviceEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  if (!opened_ || !processes_) return;
  // Memory that others have open should not go before they have closed it. Ranks mostly end
  // together; one that does not come is not waited for long.
  const bool opened = opened_->any() || direct_;
  opened_->close();
  if (!opened || failure_) return;
  try {
    inner_->barrier()->wait(Deadline::in_seconds(2));
  } catch (const Error& error) {
    log::debug("ranks did not end together: {}", error.what());
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

// By the thread of the calls.
std::shared_ptr<DeviceOperation> DeviceEngine::submit(std::vector<Call> calls) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(*failure_).in_operation(describe(calls.front()));
  }
  auto operation = std::make_shared<DeviceOperation>(std::move(calls), ++submitted_, device());
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
  constexpr auto kGrace = std::chrono::seconds(10);  // in which the thread says who is missing
  std::unique_lock lock(mutex_);
  const auto is_over = [&] { return operation.over.load(); };
  const auto wait_until = [&](Clock::time_point time) {
    if (time != Clock::time_point::max()) return over_.wait_until(lock, time, is_over);
    over_.wait(lock, is_over);
    return true;
  };
  if (!wait_until(deadline.time())) {
    give_up_at_ = std::min(give_up_at_.load(), deadline.time());
    wake_.notify_one();
    if (!wait_until(Clock::now() + kGrace))
      throw Error(ErrorCode::timeout, "the device did not come to an end",
                  "see what else runs on it, or raise SHOAL_DEADLINE_S")
          .at_rank(rank_)
          .in_operation(describe(operation.call()));
  }
  lock.unlock();
  (void)test(operation);
}

void DeviceEngine::abort(std::string_view reason) { inner_->abort(reason); }

void DeviceEngine::run() {
  for (;;) {
    std::shared_ptr<DeviceOperation> head;
    {
      std::unique_lock lock(mutex_);
      const auto work = [this] {
        return !collectives_.empty() || !arriving_.empty() || !messages_.empty();
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
        if (messages_.empty()) break;
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
  if (steps_) steps_->on_behalf_of(outer);
}

void DeviceEngine::until(const Call& call, const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::in_seconds(setup_.deadline_seconds);
  for (Backoff backoff; !condition();) {
    if (progress_messages()) backoff = {};
    if (deadline.passed() || is_late())
      throw Error(ErrorCode::timeout,
                  fmt::format("the work of {} that {} waits for did not finish in time",
                              to_string(device()), describe(call)),
                  "see what else runs on the device, or raise SHOAL_DEADLINE_S")
          .at_rank(rank_)
          .in_operation(describe(call));
    backoff.take();
  }
}

void DeviceEngine::give_up_messages() {
  for (const Message& message : messages_)
    if (message.work)
      message.work->wait(Deadline::in_seconds(0));  // throws, and names who is missing
  until(messages_.front().operation->call(), [] { return false; });
}

void DeviceEngine::until_done(Work& work) {
  for (Backoff backoff; !work.test();) {
    if (progress_messages()) backoff = {};
    if (is_late()) work.wait(Deadline::in_seconds(0));  // throws, and names who is missing
    backoff.take();
  }
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
    // Peers read this rank's buffers once they know where they are.
    until(first, [&] { return operation.ready.query(); });
    const std::vector<Reached> reached = exchange_places(operation.calls);
    direct = !reached.empty();
    if (direct) {
      carry_out_directly(operation.calls, reached);
      until_done(*inner_->barrier());  // nobody reads or writes in others' memory any more
    }
  }
  if (!direct)
    for (const Call& call : operation.calls) stage(operation, call);
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
  operation.over.store(true, std::memory_order_release);
  over_.notify_all();
}

void DeviceEngine::fail(const Error& error) {
  step_of({});
  const bool ours = error.code() != ErrorCode::timeout && error.code() != ErrorCode::peer_lost &&
                    error.code() != ErrorCode::mismatch && error.code() != ErrorCode::aborted;
  if (ours) inner_->abort(error.message());
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = error;
  const auto give_up = [&](DeviceOperation& operation) {
    operation.failure = *failure_;
    operation.over.store(true, std::memory_order_release);
  };
  for (const auto& operation : collectives_) give_up(*operation);
  for (const auto& operation : arriving_) give_up(*operation);
  for (const Message& message : messages_) give_up(*message.operation);
  collectives_.clear();
  arriving_.clear();
  messages_.clear();
  over_.notify_all();
}

}  // namespace shoal::collectives
