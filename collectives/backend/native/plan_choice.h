// Which plan an operation of one host takes: what the options force, else what the table says.
#pragma once

#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/select/choices.h"

namespace shoal::collectives::native {

class PlanChoice {
 public:
  // Takes algorithm, collectives and fixed_order. What cannot be done inside a host is logged once.
  PlanChoice(const CommunicatorOptions& options, int ranks);

  bool forces(Algorithm algorithm) const { return forced_ == algorithm; }
  bool fixed_order() const { return fixed_order_; }
  // Whether the data travels beside the control message; decided before ranks know of each other's
  // memory, alike on all of them (all_to_all_v: each for itself). It must fit besides.
  bool inlines(const Call& call) const;
  // Of what does not: ring, or direct for every other plan.
  Algorithm plan(const Call& call, bool symmetric) const;
  // What ranks compare: the algorithm of this call as far as it does not depend on the buffers.
  Algorithm told(const Call& call, bool inlined) const;

 private:
  Algorithm forced_;  // of all_reduce
  bool fixed_order_;
  int ranks_;
  Choices unknown_, symmetric_, host_;  // by where the buffers lie
};

}  // namespace shoal::collectives::native
