#include "shoal/collectives/backend/native/repeated_call.h"

namespace shoal::collectives {

void RepeatedCall::remember(const Call& call, const Signature& signature,
                            const InlineLayout& layout) {
  // Of premultiplied_sum peers read the descriptor, and of a step of another call it is not the
  // call's own.
  known_ = !call.outer && call.op != ReduceOp::premultiplied_sum && call.counts.empty();
  op_ = call.op;
  signature_ = signature;
  hash_ = hash_of(signature);
  layout_ = layout;
}

bool RepeatedCall::is_like(const Call& call) const {
  return known_ && call.operation == signature_.operation && call.dtype == signature_.dtype &&
         call.op == op_ && call.root == signature_.root && call.count == signature_.count &&
         !call.outer;
}

void RepeatedCall::write(const void* send, int rank, std::uint64_t before,
                         ControlSlot& slot) const {
  layout_.write(send, rank, slot);
  slot.first.history = history_after(before, hash_);
}

}  // namespace shoal::collectives
