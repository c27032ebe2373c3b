#include "shoal/torch/work.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>

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

std::optional<std::exception_ptr> PolledWork::look(Driving* driving) {
  if (claimed_) return std::nullopt;
  std::exception_ptr problem;
  try {
    lane_->check_open();
    lane_->progress();
    if (!advance(driving)) {
      if (!expires_.passed()) return std::nullopt;
      expire(description_.limit_seconds);
    }
  } catch (...) {
    problem = lane_->failure();
  }
  if (!claim()) return std::nullopt;
  return problem;
}

bool PolledWork::poll(bool may_block) {
  if (done_.load(std::memory_order_acquire)) return true;
  std::optional<std::exception_ptr> ended;
  if (may_block) {
    const Lane::Hold hold(*lane_);
    ended = look(nullptr);
  } else {
    const std::unique_lock lock(lane_->mutex(), std::try_to_lock);
    if (!lock) return false;
    ended = look(nullptr);
  }
  if (ended) complete(*ended);
  return done_;
}

bool PolledWork::drive(Driving& driving) {
  if (done_.load(std::memory_order_acquire)) return true;
  std::optional<std::exception_ptr> ended;
  {
    const Lane::Hold hold(*lane_);
    ended = look(&driving);
  }
  if (ended) complete(*ended);
  return done_;
}

void PolledWork::land(double seconds) {
  const at::NoGradGuard no_grad;
  landed_ = lane_->device()->queue(std::exchange(copy_out_, nullptr), true);
  has_landed_ = true;
  description_.limit_seconds = seconds;
  expires_ = Deadline::in_seconds(seconds);
}

void PolledWork::complete(std::exception_ptr problem) {
  const auto self = c10::intrusive_ptr<PolledWork>::reclaim_copy(this);
  if (copy_out_ && !problem) try {
      const at::NoGradGuard no_grad;
      if (const auto& device = lane_->device())
        landed_ = device->queue(std::move(copy_out_), false);
      else
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
  if (future && !has_landed_) mark(*future);
  lane_->forget(*this);
}

void PolledWork::mark(c10::ivalue::Future& future) {
  std::optional<c10::StreamGuard> on_copies;  // the future makes its users wait for this stream
  if (const auto& device = lane_->device()) on_copies.emplace(device->copies());
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
  if (has_landed_ && timeout == kNoTimeout) {
    if (done_.load(std::memory_order_acquire)) rethrow();
    lane_->device()->current_follows(*landed_);
    return true;
  }
  const double seconds =
      timeout.count() > 0 ? static_cast<double>(timeout.count()) / 1e3 : description_.limit_seconds;
  Driving driving{seconds > 0 ? Deadline::in_seconds(seconds) : Deadline::never()};
  Patience patience = lane_->patience();
  // If another thread is driving, this one only polls now and then: that thread drives this Work
  // too.
  while (!(lane_->is_driven() ? poll(true) : drive(driving))) {
    if (driving.until.passed()) check_deadline(seconds);
    if (std::exchange(driving.waited, false))
      lane_->give_way();
    else
      patience.pause();
  }
  rethrow();
  if (landed_) lane_->device()->current_follows(*landed_);
  return true;
}

void PolledWork::check_deadline(double seconds) {
  std::exception_ptr problem;
  {
    const Lane::Hold hold(*lane_);
    if (claimed_) return;
    try {
      lane_->check_open();
      expire(seconds);
      return;  // the operation has just ended
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
    std::vector<c10::Device> devices;
    if (const auto& device = lane_->device()) devices.push_back(device->device());
    future_ = future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::move(devices));
    done = done_ || has_landed_;
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

void CallWork::join(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
                    std::function<void()> copy_out) {
  const auto append = [](std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  open_ = true;
  append(description_.inputs, inputs);
  append(description_.outputs, outputs);
  if (!copy_out) return;
  copy_out_ = [before = std::move(copy_out_), last = std::move(copy_out)] {
    if (before) before();
    last();
  };
}

void CallWork::close(collectives::WorkPtr group) {
  add(std::move(group));
  open_ = false;
}

bool CallWork::advance(Driving* driving) {
  if (open_) return false;
  for (; next_ < calls_.size(); ++next_) {
    collectives::Work* const call = calls_[next_].get();
    if (!call) continue;
    auto* const driven = driving ? dynamic_cast<collectives::NodeWork*>(call) : nullptr;
    if (!(driven ? lane_->drive(*driven, *driving) : call->test())) return false;
  }
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

bool ReceiveWork::advance(Driving*) { return receive_->arrived(); }

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
      break;  // poll() reports the exception
    }
  Patience patience = lane_->patience();
  while (!poll(true)) patience.pause();
  rethrow();
  return true;
}

}  // namespace shoal::pytorch
