// Chooses the plan of an operation on one host: as the options force it, else by the selection
// table.
#pragma once

#include "shoal/collectives/call.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/select/choices.h"

namespace shoal::collectives::native {

class PlanChoice {
 public:
  // Uses the options algorithm, collectives and fixed_order. Logs once if a forced choice is
  // impossible inside a host.
  PlanChoice(const CommunicatorOptions& options, int ranks);

  bool forces(Algorithm algorithm) const { return forced_ == algorithm; }
  bool fixed_order() const { return fixed_order_; }
  // Whether the data travels in the control slot, if it also fits. Decided before ranks know where
  // each other's buffers lie, and alike on all ranks (for all_to_all_v, by each rank for itself).
  bool inlines(const Call& call) const;
  // For a call that does not travel inline: ring, or direct, which stands for every other plan.
  Algorithm plan(const Call& call, bool symmetric) const;
  // The algorithm in the call's signature, which ranks compare. It must not depend on where the
  // buffers lie, so it assumes symmetric buffers (all_to_all_v: automatic).
  Algorithm signature_algorithm(const Call& call, bool inlined) const;
  // The rule or option that chose `algorithm` for a call of this signature.
  std::string why(const Signature& signature, Algorithm algorithm, bool symmetric) const;

 private:
  Algorithm forced_;  // for all_reduce
  bool fixed_order_;
  int ranks_;
  Choices unknown_, symmetric_, host_;  // by where the buffers lie
};

}  // namespace shoal::collectives::native
