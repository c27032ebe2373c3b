// Facts about a small call that carry over from an equal earlier one: its arguments are valid, and
// so is everything that peers need except the data. It can therefore be published at once.
#pragma once

#include <cstdint>

#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/call.h"
#include "shoal/collectives/transport/control.h"

namespace shoal::collectives::native {

class RepeatedCall {
 public:
  // `call` must be checked, published with this signature and without a plan (run_inline_exchange).
  // Not every call is remembered.
  void remember(const Call& call, const Signature& signature, const InlineLayout& layout, int rank,
                int size);
  // Whether `call`, unchecked and not a step of another call, would pass the checks and equals the
  // remembered one in all but its buffers.
  bool is_like(const PlainCall& call) const {
    return known_ && call.kind == kind_ && call.count == call_.count &&
           are_right(call.send, call.recv);
  }
  // For such a call: writes the slot except its place and descriptor. `before`: the history of the
  // previous operation.
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
  // The distance of two buffers tells whether they overlap and whether they may.
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
