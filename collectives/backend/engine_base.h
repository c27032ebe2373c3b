// Code shared by the engines of native, net and mpi: the progress thread, the failure that ends an
// engine, the deadline of callers that only test, and the Work of an operation.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "shoal/collectives/backend/progress_thread.h"
#include "shoal/collectives/work.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {

class EngineBase : protected ProgressThread::Steps {
 public:
  double deadline_seconds() const { return deadline_seconds_; }
  void set_deadline_seconds(double seconds) { deadline_seconds_ = seconds; }

 protected:
  // Errors made from other exceptions begin with `name`.
  EngineBase(std::string_view name, double deadline_seconds,
             ProgressThread::Duration longest_nap = ProgressThread::kLongestNap,
             ProgressThread::Duration longest_park = {})
      : name_(name),
        deadline_seconds_(deadline_seconds),
        progress_(*this, longest_nap, longest_park) {}

  // Call all functions below with the engine's lock held.
  //
  // Keeps the first Error, ends all operations in flight, tells the other ranks and throws.
  [[noreturn]] virtual void fail(const Error& error) = 0;
  // Replaces a failure's Error by that of its cause if the cause is known, such as the loss of a
  // rank.
  virtual Error with_cause(const Error& error) { return error; }
  void throw_if_failed() const {
    if (failure_) throw Error(*failure_);
  }
  // Runs `body`. An exception from it fails the engine.
  template <typename Body>
  [[gnu::always_inline]] void guarded(Body&& body) {
    try {
      body();
    } catch (const Error& error) {
      throw_if_failed();
      fail(with_cause(error));
    } catch (const std::exception& problem) {  // such as bad_alloc; the peers must learn of it too
      fail(Error(ErrorCode::internal, fmt::format("{}: {}", name_, problem.what())));
    }
  }
  // Seconds since the first test() of an operation. The deadline is measured from then, so that it
  // also applies to a caller that never waits.
  static double seconds_since_first(std::optional<Clock::time_point>& first) {
    if (!first) first = Clock::now();
    return seconds_since(*first);
  }

  const std::string_view name_;
  std::atomic<double> deadline_seconds_;
  std::optional<Error> failure_;
  bool background_ = false;  // true while the progress thread drives with the lock held
  ProgressThread progress_;
};

// The engine and the operation outlive the Communicator, so that a later wait() can throw.
template <typename Engine, typename Operation>
class EngineWork final : public Work {
 public:
  EngineWork(std::shared_ptr<Engine> engine, std::shared_ptr<Operation> operation)
      : engine_(std::move(engine)), operation_(std::move(operation)) {}
  bool test() override { return engine_->test(*operation_); }
  void wait(Deadline deadline) override { engine_->wait(*operation_, deadline); }
  double default_deadline_seconds() const override { return engine_->deadline_seconds(); }
  void block_stream(Stream stream) override {
    if constexpr (requires { engine_->block_stream(*operation_, stream); })
      engine_->block_stream(*operation_, stream);
    else
      Work::block_stream(stream);
  }

 private:
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Operation> operation_;
};

}  // namespace shoal::collectives
