// Remembers a small call, so that an equal later one can be published at once: its arguments are
// known to be valid, and its slot's content is known except for the data.
#pragma once

#include <cstdint>

#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/call.h"
#include "shoal/collectives/transport/control.h"

namespace shoal::collectives::native {

class RepeatedCall {
 public:
  // `call` must have passed the checks and been published with this signature, without a plan
  // (run_inline_exchange). Calls that cannot be repeated are not remembered.
  void remember(const Call& call, const Signature& signature, const InlineLayout& layout, int rank,
                int size);
  // Whether `call` would pass the checks and equals the remembered one in all but its buffers. It
  // must not be a step of another call.
  bool is_like(const PlainCall& call) const {
    return known_ && call.kind == kind_ && call.count == call_.count &&
           are_right(call.send, call.recv);
  }
  // For a call that is_like() accepts: writes the slot, except `place` and `descriptor`. `before`:
  // the history in the previous operation's slot.
  void write(const void* send, int rank, std::uint64_t before, transport::ControlSlot& slot) const {
    layout_.write(send, rank, slot);
    slot.first.history = transport::history_after(before, hash_);
  }

  // Changes with each remembered call; never 0.
  std::uint32_t number() const { return number_; }
  const Call& call() const { return call_; }
  const Signature& signature() const { return signature_; }
  const InlineLayout& layout() const { return layout_; }

 private:
  // The distance between the two buffers decides whether they overlap, and whether they may.
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
