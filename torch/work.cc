#include "shoal/torch/work.h"

#include <algorithm>
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

std::atomic<std::uint64_t> next_number{1};

}  // namespace

PolledWork::PolledWork(std::shared_ptr<Lane> lane, WorkDescription description)
    : Work(-1, description.type, description.title, for_profiles(description.inputs)),
      lane_(std::move(lane)),
      description_(std::move(description)),
      number_(next_number++) {}

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

void PolledWork::land() {
  const at::NoGradGuard no_grad;
  landed_ = lane_->device()->queue(std::exchange(copy_out_, nullptr), true);
  has_landed_ = true;
  description_.limit_seconds = lane_->deadline_seconds();
  expire_after_limit();
}

void PolledWork::complete(std::exception_ptr problem) {
  const auto self = c10::intrusive_ptr<PolledWork>::reclaim_copy(this);
  if (copy_out_ && !problem) try {
      const at::NoGradGuard no_grad;
      if (const auto& device = lane_->device()) {
        landed_ = device->queue(std::move(copy_out_), false);
        lane_->follow_copies();
      } else {
        copy_out_();
      }
    } catch (...) {
      problem = std::current_exception();
    }
  copy_out_ = nullptr;
  description_.inputs.clear();
  if (problem) lane_->hooks().failed.call();
  finish(problem);
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(future_mutex_);
    done_.store(true, std::memory_order_release);
    future = future_;
  }
  if (future && !has_landed_) mark(*future);
  if (!problem) lane_->hooks().completed.call(number_);
  lane_->forget(*this);
}

std::vector<c10::Stream> PolledWork::copies() const {
  if (const auto& device = lane_->device()) return {device->copies()};
  return {};
}

void PolledWork::mark(c10::ivalue::Future& future) {
  const c10::MultiStreamGuard on_copies(copies());
  if (const auto problem = exception())
    future.setError(problem);
  else
    future.markCompleted(c10::IValue(description_.outputs));
}

bool PolledWork::isSuccess() const { return done_ && !exception(); }

void PolledWork::rethrow() {
  if (const auto problem = exception()) std::rethrow_exception(problem);
}

void PolledWork::check_process() const {
  if (!done_) translating([&] { lane_->check_process(); });
}

bool PolledWork::wait(std::chrono::milliseconds timeout) {
  check_process();
  if (has_landed_ && timeout == kNoTimeout) {
    if (done_.load(std::memory_order_acquire)) rethrow();
    lane_->device()->current_follows(*landed_);
    return true;
  }
  const double seconds =
      timeout.count() > 0 ? static_cast<double>(timeout.count()) / 1e3 : description_.limit_seconds;
  Driving driving{seconds > 0 ? Deadline::in_seconds(seconds) : Deadline::never()};
  if (timeout.count() > 0) outlast(driving.until);
  Patience patience = lane_->patience();
  // If another thread is driving, this one only polls now and then: that thread drives this Work
  // too.
  while (!(lane_->is_driven() ? poll(true) : drive(driving))) {
    if (driving.until.passed()) check_deadline(seconds, timeout.count() <= 0);
    if (std::exchange(driving.waited, false))
      lane_->give_way();
    else
      patience.pause();
  }
  rethrow();
  if (landed_) lane_->device()->current_follows(*landed_);
  return true;
}

void PolledWork::outlast(Deadline until) {
  if (has_landed_) return;
  const Lane::Hold hold(*lane_);
  if (expires_.time() < until.time()) expires_ = until;
}

void PolledWork::check_deadline(double seconds, bool of_group) {
  std::exception_ptr problem;
  {
    const Lane::Hold hold(*lane_);
    if (claimed_) return;
    try {
      lane_->check_open();
      expire(seconds);
      return;  // the operation has just ended
    } catch (...) {
      problem = lane_->failure(of_group);
    }
    if (!claim()) return;
  }
  complete(problem);
}

c10::intrusive_ptr<c10::ivalue::Future> PolledWork::getFuture() {
  check_process();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  bool done = false;
  {
    const std::lock_guard lock(future_mutex_);
    if (future_) return future_;
    std::vector<c10::Device> devices;
    for (const c10::Stream& stream : copies()) devices.push_back(stream.device());
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
    auto code = c10d::WorkResult::SUCCESS;
    if (future.hasError()) try {
        std::rethrow_exception(future.exception_ptr());
      } catch (const TimedOut&) {
        code = c10d::WorkResult::TIMEOUT;
      } catch (...) {
        code = c10d::WorkResult::COMM_ERROR;
      }
    result->markCompleted(c10::IValue(static_cast<std::int64_t>(code)));
  });
  return result;
}

bool CallWork::advance(Driving* driving) {
  for (; next_ < calls_.size(); ++next_) {
    collectives::Work* const call = calls_[next_].get();
    if (!call) continue;
    auto* const driven = driving ? dynamic_cast<collectives::NodeWork*>(call) : nullptr;
    if (!(driven ? lane_->drive(*driven, *driving) : call->test())) return false;
  }
  calls_.clear();
  kept_alive_.clear();
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

bool CoalescedWork::join(const std::vector<at::Tensor>& inputs,
                         const std::vector<at::Tensor>& outputs, const std::function<void()>& body,
                         std::function<void()> copy_out) {
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  const std::lock_guard lock(joining_);
  if (has_begun_) return false;
  lane_->call(
      [&] { append(joined_, collectives::backend_of(lane_->collectives()).recorded(body)); });
  append(description_.inputs, inputs);
  append(description_.outputs, outputs);
  if (copy_out)
    copy_out_ = [before = std::move(copy_out_), last = std::move(copy_out)] {
      if (before) before();
      last();
    };
  return true;
}

void CoalescedWork::begin() {
  const std::lock_guard lock(joining_);
  if (std::exchange(has_begun_, true)) return;
  try {
    lane_->begin(c10::intrusive_ptr<PolledWork>::reclaim_copy(this), [&] {
      add(collectives::backend_of(lane_->collectives()).submit_together(std::move(joined_)));
      is_open_ = false;
    });
  } catch (...) {
    const Lane::Hold hold(*lane_);
    refused_ = std::current_exception();
    throw;
  }
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  begin();
  return CallWork::wait(timeout);
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  begin();
  return CallWork::getFuture();
}

bool CoalescedWork::advance(Driving* driving) {
  if (refused_) std::rethrow_exception(refused_);
  return !is_open_ && CallWork::advance(driving);
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
              "see what that rank does, or raise the timeout of the process group")
      .with_peer(receive_->source);
}

GroupWork::GroupWork(std::shared_ptr<Lane> lane, WorkDescription description,
                     std::vector<c10::intrusive_ptr<PolledWork>> parts)
    : PolledWork(std::move(lane), std::move(description)), parts_(std::move(parts)) {
  for (const auto& part : parts_)
    for (at::Tensor& output : part->result()) description_.outputs.push_back(std::move(output));
}

std::vector<c10::Stream> GroupWork::copies() const {
  std::vector<c10::Stream> all;
  for (const auto& part : parts_)
    for (const c10::Stream& stream : part->copies())
      if (std::ranges::find(all, stream) == all.end()) all.push_back(stream);
  return all;
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
  check_process();
  const auto until = Clock::now() + timeout;  // if there is a time-out
  const double seconds = static_cast<double>(timeout.count()) / 1e3;
  if (seconds > 0)
    for (const auto& part : parts_) part->outlast(Deadline::in_seconds(seconds));
  for (const auto& part : parts_) try {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      part->wait(timeout.count() > 0 ? std::max(left, std::chrono::milliseconds(1)) : timeout);
    } catch (...) {  // NOLINT(bugprone-empty-catch): poll() reports it when all parts have ended
    }
  Patience patience = lane_->patience();
  while (!poll(true)) patience.pause();
  rethrow();
  return true;
}

}  // namespace shoal::pytorch
