// Prints the rows of shoal-collective-perf: nccl-tests' table plus minimum and p99, or JSON lines.
#pragma once

#include "measure.h"

namespace shoal::perf {

// `bound`: minimum seconds per byte over the hosts' links; 0: unknown, not printed.
void print_header(const Options& options, const collectives::Communicator& communicator,
                  double bound);
void print_row(const Options& options, const collectives::Communicator& communicator,
               const Result& result, double bound);
// Average bus bandwidth and total number of wrong elements.
void print_summary(const Options& options, double busbw, std::int64_t wrong);

}  // namespace shoal::perf
