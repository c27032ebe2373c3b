// What is known of a small call from the one before it that was alike: enough to tell the peers
// before anything else is worked out, so that the rest happens while they answer.
#pragma once

#include <cstdint>

#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/collectives/transport/control.h"

namespace shoal::collectives {

class RepeatedCall {
 public:
  // `call` was published with this signature and takes no plan (run_inline_exchange). Not every
  // call is kept.
  void remember(const Call& call, const Signature& signature, const InlineLayout& layout);
  // Whether all but its buffers is as in the call remembered.
  bool is_like(const Call& call) const;
  // Of a call like it: all of the slot but the place and the descriptor. `before`: the history of
  // the operation before it.
  void write(const void* send, int rank, std::uint64_t before, ControlSlot& slot) const;

  const Signature& signature() const { return signature_; }
  const InlineLayout& layout() const { return layout_; }

 private:
  bool known_ = false;
  ReduceOp op_ = ReduceOp::sum;
  Signature signature_;
  std::uint64_t hash_ = 0;
  InlineLayout layout_;
};

}  // namespace shoal::collectives
