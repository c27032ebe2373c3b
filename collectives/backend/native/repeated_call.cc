#include "shoal/collectives/backend/native/repeated_call.h"

#include <cstring>

namespace shoal::collectives {

void RepeatedCall::remember(const Call& call, const Signature& signature, std::int64_t sent,
                            std::int64_t outside) {
  // Of premultiplied_sum peers read the descriptor, and of a step of another call it is not the
  // call's own.
  known_ = !call.outer && call.op != ReduceOp::premultiplied_sum && call.counts.empty();
  op_ = call.op;
  signature_ = signature;
  kind_ = kind_of(signature);
  sent_ = sent;
  outside_ = outside;
}

bool RepeatedCall::is_like(const Call& call) const {
  return known_ && call.operation == signature_.operation && call.dtype == signature_.dtype &&
         call.op == op_ && call.root == signature_.root && call.count == signature_.count &&
         !call.outer;
}

void RepeatedCall::write(const void* send, ControlSlot& slot) const {
  if (sent_ > 0)
    std::memcpy(outside_ == 0 ? slot.first.payload : slot.payload, send,
                static_cast<std::size_t>(sent_));
  slot.first.kind = kind_;
  slot.first.count = signature_.count;
}

}  // namespace shoal::collectives
