// One operation of a native Communicator, its Work, and their pool. Operations are reused, so a
// loop of small operations neither allocates nor counts references.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "shoal/collectives/backend/native/fusion.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/backend/node_face.h"
#include "shoal/runtime/base/clock.h"

namespace shoal::collectives::native {

class Engine;
struct QueuedOperation;

// A member of its operation. Deleting it returns the operation to the engine, which lives until
// then.
class NativeWork final : public NodeWork {
 public:
  NativeWork(Engine& engine, QueuedOperation& operation) : engine_(engine), operation_(operation) {}
  bool test() override;
  void wait(Deadline deadline) override;
  void wait() override;
  void doze(int milliseconds) override;
  bool drive(const Deadline& until, const std::atomic<int>& wanted, bool may_spin) override;
  void interrupt() override;
  double default_deadline_seconds() const override;
  static void operator delete(NativeWork* work, std::destroying_delete_t);

 private:
  Engine& engine_;
  QueuedOperation& operation_;
};

enum class Holder : std::uint8_t {
  none,
  caller,  // holds the Work
  orphan   // the caller still holds the Work, but the Communicator is gone
};

struct QueuedOperation {
  explicit QueuedOperation(Engine& engine) : work(engine, *this) {}

  Call call;
  std::unique_ptr<Fusion> fusion;  // the calls it was fused from, if any
  std::uint32_t sequence = 0;
  std::uint32_t step = 0;
  bool published = false;
  bool exchanged_inline = false;  // without a plan, by `layout`
  InlineLayout layout;
  std::uint32_t repeats = 0;   // RepeatedCall::number() of `call` and `layout`; 0: not repeated
  std::unique_ptr<Plan> plan;  // once all descriptors match
  std::optional<Clock::time_point> first_test;  // time of the first test() that found it unfinished
  QueuedOperation* next = nullptr;              // in a list
  std::atomic<bool> done{false};
  std::atomic<Holder> holder{Holder::none};
  NativeWork work;
};

// Operations linked through `next`; an operation is in at most one list.
class OperationList {
 public:
  bool empty() const { return !head_; }
  QueuedOperation& front() const { return *head_; }
  void push_front(QueuedOperation& operation) {
    operation.next = head_;
    head_ = &operation;
    if (!tail_) tail_ = &operation;
  }
  void push_back(QueuedOperation& operation) {
    operation.next = nullptr;
    (head_ ? tail_->next : head_) = &operation;
    tail_ = &operation;
  }
  void pop_front() {
    head_ = head_->next;
    if (!head_) tail_ = nullptr;
  }

 private:
  QueuedOperation *head_ = nullptr, *tail_ = nullptr;
};

// Owns all operations of an engine. Not thread-safe: guarded by the engine's lock.
class OperationPool {
 public:
  explicit OperationPool(Engine& engine) : engine_(engine) {}
  // Returns an operation in its initial state, except for `call`, `layout` and `repeats`. It stays
  // in use until its Work, which the caller hands out, is deleted.
  QueuedOperation& take() {
    QueuedOperation& operation =
        !spare_.empty() && is_free(spare_.front()) ? spare_.front() : find_or_make();
    spare_.pop_front();
    operation.published = operation.exchanged_inline = false;
    operation.step = 0;
    operation.first_test.reset();
    operation.done.store(false, std::memory_order_relaxed);
    operation.holder.store(Holder::caller, std::memory_order_relaxed);
    return operation;
  }
  // Call once no thread drives the operation any more. It is reused once its Work is gone.
  void put_back(QueuedOperation& operation) { spare_.push_front(operation); }
  const std::vector<std::unique_ptr<QueuedOperation>>& all() const { return all_; }

 private:
  static bool is_free(const QueuedOperation& operation) {
    return operation.holder.load(std::memory_order_acquire) == Holder::none;
  }
  QueuedOperation& find_or_make();  // moves or puts a free operation to the front of spare_

  Engine& engine_;
  std::vector<std::unique_ptr<QueuedOperation>> all_;
  OperationList spare_;
};

std::uint32_t number_of(const QueuedOperation& operation);  // the number of the user's call
std::string named(const QueuedOperation& operation);        // for errors: the call and its number

}  // namespace shoal::collectives::native
