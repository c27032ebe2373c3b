// Operations in flight as PyTorch's Works.
//
// The thread that first finds a Work's data complete completes the Work. It is a thread that waits,
// a thread that calls isCompleted(), or the Lane's own thread if getFuture() was called. This
// thread copies the results out, wakes waiting threads and completes the future, whose callbacks it
// runs.
//
// On a device, results are copied out on a separate stream, and wait() makes the current stream
// wait for it. If operations run on streams only (Lane::is_of_streams()), no host thread waits for
// them: land() queues the copies behind them at once.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "shoal/collectives/work.h"
#include "shoal/torch/lane.h"

namespace shoal::pytorch {

struct WorkDescription {
  c10d::OpType type;
  const char* title;  // in profiles
  std::vector<at::Tensor> inputs, outputs;
  std::uint64_t sequence = 0;
  double limit_seconds = 0;  // time-out of wait(); 0: the Communicator's deadline
};

class PolledWork : public c10d::Work {
 public:
  PolledWork(std::shared_ptr<Lane> lane, WorkDescription description);

  // Makes progress. True once the Work has ended, successfully or not. Unless `may_block`, returns
  // false if another thread uses the Lane.
  virtual bool poll(bool may_block);
  // For a Work whose calls run on streams only. Queues its copies behind the calls. Futures and a
  // wait() without a time-out then order streams and do not block. The Work must end within the
  // Communicator's deadline. Called with the Lane's mutex held, before another thread sees this
  // Work.
  void land();
  // Like poll(true), but waits if the operation can be driven.
  bool drive(Driving& driving);
  // Lets the Work fail `limit_seconds` from now, also if no thread calls wait(). Called before
  // another thread sees this Work.
  void expire_after_limit() { expires_ = Deadline::in_seconds(description_.limit_seconds); }
  // Does not expire before then, unless its results have landed.
  void outlast(Deadline until);
  // The streams on which results are copied out, one for each device. The future's users wait for
  // these streams.
  virtual std::vector<c10::Stream> copies() const;
  // True if Works of this kind end in the order of their calls.
  virtual bool is_ordered() const { return true; }

  bool isCompleted() override {
    check_process();
    return poll(false) && (!landed_ || landed_->query());
  }
  bool isSuccess() const override;
  std::vector<at::Tensor> result() override { return description_.outputs; }
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override { lane_->abort("Work.abort() was called"); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  std::uint64_t getSequencenumber() const override { return description_.sequence; }
  // Unique among all Works of this process. No `override`: PyTorch before 2.15 has no such
  // function.
  std::uint64_t getCompletionKey() const { return number_; }  // NOLINT(modernize-use-override)

 protected:
  // Called with the Lane's mutex held. True once the data is complete. Throws the operation's
  // Error. Waits if `driving` is set and the operation can be driven.
  virtual bool advance(Driving* driving) = 0;
  // Called with the Lane's mutex held after `seconds`. Throws timeout unless the operation has just
  // ended.
  virtual void expire(double seconds) = 0;
  virtual void complete(std::exception_ptr problem);
  bool claim() { return !claimed_.exchange(true); }  // true for one caller, which then completes it
  void rethrow();
  // Throws in a forked child unless the Work had ended before the fork.
  void check_process() const;

  std::shared_ptr<Lane> lane_;
  WorkDescription description_;
  std::function<void()> copy_out_;

 private:
  // Called with the Lane's mutex held. Returns the result if this thread must complete the Work.
  std::optional<std::exception_ptr> look(Driving* driving);
  // `of_group`: as of Lane::failure().
  void check_deadline(double seconds, bool of_group);
  void mark(c10::ivalue::Future& future);

  const std::uint64_t number_;
  std::atomic<bool> claimed_{false}, done_{false};
  bool has_landed_ = false;
  DeviceStreams::Reached landed_;         // results are ready on the device; valid once `done_`
  Deadline expires_ = Deadline::never();  // guarded by the Lane's mutex
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// One or more calls of the collectives' Communicator, or sends. On a device, receives too.
class CallWork : public PolledWork {
 public:
  using PolledWork::PolledWork;
  void add(collectives::WorkPtr call) { calls_.push_back(std::move(call)); }
  void copy_out(std::function<void()> body) { copy_out_ = std::move(body); }
  // Keeps `memory` until the Work has ended.
  void keep_alive(std::shared_ptr<void> memory) { kept_alive_.push_back(std::move(memory)); }
  bool is_ordered() const override {
    return description_.type != c10d::OpType::SEND && description_.type != c10d::OpType::RECV;
  }

 protected:
  bool advance(Driving* driving) override;

 private:
  void expire(double seconds) override;

  std::vector<collectives::WorkPtr> calls_;
  std::size_t next_ = 0;  // the first call that has not ended
  std::vector<std::shared_ptr<void>> kept_alive_;
};

// The collectives of one device between startCoalescing() and endCoalescing(). They begin together;
// no message and no call of another thread comes between them.
class CoalescedWork final : public CallWork {
 public:
  using CallWork::CallWork;
  // Adds the calls that `body` makes. A call that is refused throws and changes nothing. Returns
  // false if begin() has been called.
  bool join(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs,
            const std::function<void()>& body, std::function<void()> copy_out);
  // Starts the calls, once. A waiting thread also calls this, since an exception may have kept the
  // caller from endCoalescing().
  void begin();

  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  bool advance(Driving* driving) override;

  std::mutex joining_;  // taken before the Lane's
  bool has_begun_ = false;
  std::vector<collectives::Call> joined_;
  // Guarded by the Lane's mutex:
  bool is_open_ = true;
  std::exception_ptr refused_;  // why it could not begin
};

// A message that the Mailbox matches by its tag.
class ReceiveWork final : public PolledWork {
 public:
  ReceiveWork(std::shared_ptr<Lane> lane, WorkDescription description,
              std::shared_ptr<Mailbox::Receive> receive, at::Tensor target);
  bool is_ordered() const override { return false; }
  int sourceRank() const override { return receive_->from; }

 private:
  bool advance(Driving* driving) override;
  void expire(double seconds) override;

  std::shared_ptr<Mailbox::Receive> receive_;
};

// Ends when all its parts have ended. Fails with the error of the first part that failed.
class GroupWork final : public PolledWork {
 public:
  GroupWork(std::shared_ptr<Lane> lane, WorkDescription description,
            std::vector<c10::intrusive_ptr<PolledWork>> parts);
  bool poll(bool may_block) override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<c10::Stream> copies() const override;
  bool is_ordered() const override { return false; }

 private:
  bool advance(Driving*) override { return true; }
  void expire(double) override {}

  std::vector<c10::intrusive_ptr<PolledWork>> parts_;
};

}  // namespace shoal::pytorch
