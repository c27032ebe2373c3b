// Chooses the plan of an operation on one host: forced by the options, else by the table.
#pragma once

#include "shoal/collectives/call.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/select/choices.h"

namespace shoal::collectives::native {

class PlanChoice {
 public:
  // Uses algorithm, collectives and fixed_order. Logs once what is impossible inside a host.
  PlanChoice(const CommunicatorOptions& options, int ranks);

  bool forces(Algorithm algorithm) const { return forced_ == algorithm; }
  bool fixed_order() const { return fixed_order_; }
  // Whether the data travels beside the control message. Decided alike on all ranks (all_to_all_v:
  // by each rank) before they know where each other's buffers lie. The data must also fit.
  bool inlines(const Call& call) const;
  // For calls that do not travel inline: ring, or direct for every other plan.
  Algorithm plan(const Call& call, bool symmetric) const;
  // The algorithm that ranks compare: that of this call as far as it does not depend on the
  // buffers.
  Algorithm told(const Call& call, bool inlined) const;
  // The rule or option that chose `algorithm` for a call of this signature.
  std::string why(const Signature& signature, Algorithm algorithm, bool symmetric) const;

 private:
  Algorithm forced_;  // for all_reduce
  bool fixed_order_;
  int ranks_;
  Choices unknown_, symmetric_, host_;  // by where the buffers lie
};

}  // namespace shoal::collectives::native
