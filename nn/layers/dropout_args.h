// Arguments of dropout kernels, for the operations of this folder.
#pragma once

#include "shoal/kernels/kernels.h"
#include "shoal/nn/layers/functional.h"

namespace shoal::nn {

// True if the site drops elements in this context.
inline bool drops(const Context& context, const DropoutSite& site) {
  return context.training() && site.probability > 0;
}

// Consumes the next ordinal of the site's path.
inline kernels::DropoutArgs dropout_args(Context& context, const DropoutSite& site,
                                         const Shape& shape) {
  kernels::DropoutArgs args;
  if (!drops(context, site)) return args;
  args.probability = site.probability;
  args.site = context.next_site(site.path_hash);
  args.rows_per_sample = shape.rank() >= 3 ? shape[-2] : 1;
  if (const Tensor& rows = context.activation.rows; rows.defined() && shape.rank() == 2) {
    args.rows_per_sample = context.activation.length;
    args.rows = rows;
  }
  args.row_offset = context.activation.first_position;
  args.column_offset = site.column_offset;
  args.columns = site.columns;
  return args;
}

}  // namespace shoal::nn
