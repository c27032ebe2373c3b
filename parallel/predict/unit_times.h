// How long a unit of a model takes on a machine, and how long collectives take. Pure.
#pragma once

#include <cstdint>

#include "shoal/parallel/predict/machine.h"
#include "shoal/parallel/predict/model_shape.h"

namespace shoal::parallel {

// Seconds of one product [m, k] x [k, n].
double product_seconds(const Machine& machine, DType dtype, double m, double n, double k);

struct RankBatch {  // what one rank computes at once
  std::int64_t rows = 1, length = 1;
  DType dtype = DType::f32;
  int tensor = 1;         // tensor-parallel ranks that share each block
  int nodes = 1;          // nodes that these are on
  bool sequence = false;  // they split the positions outside of products as well
};

// Seconds by part; the parts of forward and backward add up to what a device does, without the
// host's launches.
struct PassTimes {
  double products = 0, attention = 0, passes = 0, loss = 0, exchanges = 0;
  double sum() const { return products + attention + passes + loss + exchanges; }
};
struct UnitTimes {
  PassTimes forward, backward;
  double weights = 0;  // the part of backward.products that a split backward leaves for later
  double launch = 0;   // on the host, of forward; backward takes twice that
};
UnitTimes unit_times(const Machine& machine, const UnitShape& unit, std::int64_t channels,
                     const RankBatch& batch);

// Bytes that a unit keeps from forward to backward, without checkpointing: its input, the inputs
// and results of its norms and products, and attention's row sums. Masks of dropout are not
// included.
double kept_bytes(const UnitShape& unit, std::int64_t channels, const RankBatch& batch);
// Bytes that a unit's backward needs beside these at its peak. In a block that is the gradients of
// a gated MLP's two branches, or else those of its residual stream: the gradient of an MLP without
// a gate takes the place of its activation.
double working_bytes(const UnitShape& unit, std::int64_t channels, const RankBatch& batch);
// Bytes that an update reads and writes, each rank its share 1 / `parts` of the elements:
// gradients, masters and the rule's states, all but the gradients written too, and values of 16
// bits beside their masters.
double update_bytes(const Elements& elements, int gradient_reads, DType dtype, int parts);
// Bytes of the residual stream between two units.
double stream_bytes(std::int64_t channels, const RankBatch& batch);

// Seconds of one all_reduce of `bytes` over `ranks` ranks on `nodes` nodes. `sharing`: groups that
// use a node's network at the same time.
double all_reduce_seconds(const Machine& machine, double bytes, int ranks, int nodes, int sharing,
                          double network_efficiency);
// Seconds of a message to a rank, on this node or another.
double message_seconds(const Machine& machine, double bytes, bool same_node);

}  // namespace shoal::parallel
