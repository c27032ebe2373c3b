// What is known of a small call from the one before it that was alike: that its arguments are
// right, and all that peers need but the data. So it can be told to them at once.
#pragma once

#include <cstdint>

#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/transport/control.h"

namespace shoal::collectives::native {

class RepeatedCall {
 public:
  // `call` has been checked, was published with this signature and takes no plan
  // (run_inline_exchange). Not every call is kept.
  void remember(const Call& call, const Signature& signature, const InlineLayout& layout, int rank,
                int size);
  // Whether `call`, which nobody has checked and which is a step of no other, would pass the checks
  // and is as the one remembered in all but its buffers.
  bool is_like(const PlainCall& call) const {
    return known_ && call.kind == kind_ && call.count == call_.count &&
           are_right(call.send, call.recv);
  }
  // Of a call like it: all of the slot but the place and the descriptor. `before`: the history of
  // the operation before it.
  void write(const void* send, int rank, std::uint64_t before, transport::ControlSlot& slot) const {
    layout_.write(send, rank, slot);
    slot.first.history = transport::history_after(before, hash_);
  }

  // Another for each call remembered; never 0.
  std::uint32_t number() const { return number_; }
  const Call& call() const { return call_; }
  const Signature& signature() const { return signature_; }
  const InlineLayout& layout() const { return layout_; }

 private:
  // Whether two buffers overlap, and whether they may, depends on their distance.
  bool are_right(const void* send, const void* recv) const {
    if (call_.count == 0) return true;
    const std::int64_t distance = distance_of(send, recv);
    return send && recv &&
           (distance == distance_ || distance >= send_bytes_ || -distance >= recv_bytes_);
  }
  static std::int64_t distance_of(const void* send, const void* recv) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(recv) -
                                     reinterpret_cast<std::uintptr_t>(send));
  }

  bool known_ = false;
  std::uint32_t number_ = 0;
  PlainCall::Kind kind_{};
  Call call_;
  Signature signature_;
  std::uint64_t hash_ = 0;
  InlineLayout layout_;
  std::int64_t distance_ = 0, send_bytes_ = 0, recv_bytes_ = 0;
};

}  // namespace shoal::collectives::native
