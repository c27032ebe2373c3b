// What is known of a small call from the one before it that was alike: enough to tell the peers
// before anything else is worked out, so that the rest happens while they answer.
#pragma once

#include <cstdint>

#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/transport/control.h"

namespace shoal::collectives {

class RepeatedCall {
 public:
  // `call` was published with this signature and takes no plan (run_inline_exchange); this rank
  // sends so many bytes, of which `outside` lie outside of the first line. Not every call is kept.
  void remember(const Call& call, const Signature& signature, std::int64_t sent,
                std::int64_t outside);
  // Whether all but its buffers is as in the call remembered.
  bool is_like(const Call& call) const;
  // Of a call like it: all of the slot but the place and the descriptor.
  void write(const void* send, ControlSlot& slot) const;

  const Signature& signature() const { return signature_; }
  std::int64_t outside() const { return outside_; }

 private:
  bool known_ = false;
  ReduceOp op_ = ReduceOp::sum;
  Signature signature_;
  std::uint64_t kind_ = 0;
  std::int64_t sent_ = 0, outside_ = 0;
};

}  // namespace shoal::collectives
