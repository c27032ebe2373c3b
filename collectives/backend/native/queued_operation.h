// One operation of a native Communicator, its Work, and where both come from. All is used again, so
// that a loop of small operations neither allocates nor counts owners.
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

// Lies in its operation; to delete it is to give it back to the engine, which lives until then.
class NativeWork final : public NodeWork {
 public:
  NativeWork(Engine& engine, QueuedOperation& operation) : engine_(engine), operation_(operation) {}
  bool test() override;
  void wait(Deadline deadline) override;
  void wait() override;
  void doze(int milliseconds) override;
  double default_deadline_seconds() const override;
  static void operator delete(NativeWork* work, std::destroying_delete_t);

 private:
  Engine& engine_;
  QueuedOperation& operation_;
};

enum class Holder : std::uint8_t {
  nobody,
  caller,  // has the Work
  orphan   // the caller still has it, the Communicator is gone
};

struct QueuedOperation {
  explicit QueuedOperation(Engine& engine) : work(engine, *this) {}

  Call call;
  std::unique_ptr<Fusion> fusion;  // what it stands for, if several
  std::uint32_t sequence = 0;
  std::uint32_t step = 0;
  bool published = false;
  bool exchanged_inline = false;  // and so without a plan:
  InlineLayout layout;
  std::uint32_t repeats = 0;   // RepeatedCall::number(), whose call and layout these are
  std::unique_ptr<Plan> plan;  // once all descriptors match
  std::optional<Clock::time_point> first_test;  // that found it unfinished
  QueuedOperation* next = nullptr;              // in a list
  std::atomic<bool> done{false};
  std::atomic<Holder> holder{Holder::nobody};
  NativeWork work;
};

// Operations in a row, linked through `next`: each is in one list at most.
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

// Owns all operations of an engine. Not thread-safe: the engine's lock covers it.
class OperationPool {
 public:
  explicit OperationPool(Engine& engine) : engine_(engine) {}
  // As if new but for `call`, `layout` and `repeats`; its Work, which the caller hands out, holds
  // it.
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
  // Nobody drives it any more: taken again once its Work is gone.
  void put_back(QueuedOperation& operation) { spare_.push_front(operation); }
  const std::vector<std::unique_ptr<QueuedOperation>>& all() const { return all_; }

 private:
  static bool is_free(const QueuedOperation& operation) {
    return operation.holder.load(std::memory_order_acquire) == Holder::nobody;
  }
  QueuedOperation& find_or_make();  // the first of spare_

  Engine& engine_;
  std::vector<std::unique_ptr<QueuedOperation>> all_;
  OperationList spare_;
};

std::uint32_t number_of(const QueuedOperation& operation);  // as the user calls and counts it
std::string named(const QueuedOperation& operation);        // for errors: the call and its number

}  // namespace shoal::collectives::native
