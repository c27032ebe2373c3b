#include "shoal/torch/work.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"

namespace shoal::pytorch {
namespace {

std::optional<std::vector<at::Tensor>> for_profiles(const std::vector<at::Tensor>& inputs) {
  if (inputs.empty()) return std::nullopt;
  return inputs;
}

}  // namespace

PolledWork::PolledWork(std::shared_ptr<Lane> lane, WorkDescription description)
    : Work(-1, description.type, description.title, for_profiles(description.inputs)),
      lane_(std::move(lane)),
      description_(std::move(description)) {}

bool PolledWork::poll(bool may_block) {
  if (done_.load(std::memory_order_acquire)) return true;
  std::exception_ptr problem;
  {
    std::unique_lock lock(lane_->mutex(), std::defer_lock);
    if (may_block)
      lock.lock();
    else if (!lock.try_lock())
      return false;
    if (claimed_) return done_;
    try {
      lane_->check_open();
      lane_->progress();
      if (!advance()) return false;
    } catch (...) {
      problem = lane_->failure();
    }
    if (!claim()) return done_;
  }
  complete(problem);
  return true;
}

void PolledWork::complete(std::exception_ptr problem) {
  const auto self = c10::intrusive_ptr<PolledWork>::reclaim_copy(this);
  if (copy_out_ && !problem) try {
      const at::NoGradGuard no_grad;
      copy_out_();
    } catch (...) {
      problem = std::current_exception();
    }
  copy_out_ = nullptr;
  description_.inputs.clear();
  finish(problem);
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(future_mutex_);
    done_.store(true, std::memory_order_release);
    future = future_;
  }
  if (future) mark(*future);
  lane_->forget(*this);
}

void PolledWork::mark(c10::ivalue::Future& future) {
  if (const auto problem = exception())
    future.setError(problem);
  else
    future.markCompleted(c10::IValue(description_.outputs));
}

bool PolledWork::isSuccess() const { return done_ && !exception(); }

void PolledWork::rethrow() {
  if (const auto problem = exception()) std::rethrow_exception(problem);
}

bool PolledWork::wait(std::chrono::milliseconds timeout) {
  if (!poll(true)) {
    const double seconds = timeout.count() > 0 ? static_cast<double>(timeout.count()) / 1e3
                                               : description_.limit_seconds;
    const Deadline deadline = seconds > 0 ? Deadline::in_seconds(seconds) : Deadline::never();
    Patience patience = lane_->patience();
    for (int round = 1; !poll(true); ++round) {
      if (round % 64 == 0 && deadline.passed()) check_deadline(seconds);
      patience.pause();
    }
  }
  rethrow();
  return true;
}

void PolledWork::check_deadline(double seconds) {
  std::exception_ptr problem;
  {
    const std::lock_guard lock(lane_->mutex());
    if (claimed_) return;
    try {
      lane_->check_open();
      expire(seconds);
      return;  // it has just ended
    } catch (...) {
      problem = lane_->failure();
    }
    if (!claim()) return;
  }
  complete(problem);
}

c10::intrusive_ptr<c10::ivalue::Future> PolledWork::getFuture() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool done = false;
  {
    const std::lock_guard lock(future_mutex_);
    if (future_) return future_;
    future_ = future =
        c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    done = done_;
  }
  if (done)
    mark(*future);
  else
    lane_->follow(c10::intrusive_ptr<PolledWork>::reclaim_copy(this));
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> PolledWork::getFutureResult() {
  auto result = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  getFuture()->addCallback([result](c10::ivalue::Future& future) {
    const auto code = future.hasError() ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS;
    result->markCompleted(c10::IValue(static_cast<std::int64_t>(code)));
  });
  return result;
}

bool CallWork::advance() {
  for (; next_ < calls_.size(); ++next_)
    if (calls_[next_] && !calls_[next_]->test()) return false;
  calls_.clear();
  held_.clear();
  return true;
}

void CallWork::expire(double seconds) {
  try {
    for (; next_ < calls_.size(); ++next_)
      if (calls_[next_]) calls_[next_]->wait(deadlines::at_once());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    throw Error(ErrorCode::timeout, fmt::format("after {:.1f} s: {}", seconds, error.what()));
  }
}

ReceiveWork::ReceiveWork(std::shared_ptr<Lane> lane, WorkDescription description,
                         std::shared_ptr<Mailbox::Receive> receive, at::Tensor target)
    : PolledWork(std::move(lane), std::move(description)), receive_(std::move(receive)) {
  copy_out_ = [posted = receive_, to = std::move(target)]() mutable { posted->copy_to(to); };
}

bool ReceiveWork::advance() { return receive_->arrived(); }

void ReceiveWork::expire(double seconds) {
  lane_->mailbox().cancel(receive_);
  throw Error(ErrorCode::timeout,
              fmt::format("{} did not finish within {:.1f} s; {}", receive_->name(), seconds,
                          receive_->whereabouts()),
              "see what that rank does, or raise the timeout of the process group");
}

bool GroupWork::poll(bool may_block) {
  std::exception_ptr problem;
  for (const auto& part : parts_) {
    if (!part->poll(may_block)) return false;
    if (!problem) problem = part->exception();
  }
  if (claim()) complete(problem);
  return isSuccess() || exception();
}

bool GroupWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& part : parts_) try {
      part->wait(timeout);
    } catch (...) {
      break;  // poll() finds it
    }
  Patience patience = lane_->patience();
  while (!poll(true)) patience.pause();
  rethrow();
  return true;
}

}  // namespace shoal::pytorch
