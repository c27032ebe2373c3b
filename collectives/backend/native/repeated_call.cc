#include "shoal/collectives/backend/native/repeated_call.h"

namespace shoal::collectives::native {

void RepeatedCall::remember(const Call& call, const Signature& signature,
                            const InlineLayout& layout, int rank, int size) {
  // With premultiplied_sum, peers read the factor from the descriptor. The descriptor of a step of
  // another call names that call.
  known_ = !call.outer && call.op != ReduceOp::premultiplied_sum && call.counts.empty();
  if (!known_) return;
  if (++number_ == 0) ++number_;
  kind_ = call.plain().kind;
  call_ = call;
  signature_ = signature;
  hash_ = transport::hash_of(signature);
  layout_ = layout;
  distance_ = distance_of(call.send, call.recv);
  send_bytes_ = call.send_bytes(rank, size);
  recv_bytes_ = call.recv_bytes(rank, size);
}

}  // namespace shoal::collectives::native
