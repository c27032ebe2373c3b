// Rows of shoal-collective-perf: nccl-tests' table with minimum and p99, or JSON lines.
#pragma once

#include "measure.h"

namespace shoal::perf {

// `bound`: least seconds a byte that the wires between hosts allow; 0: not known, not printed.
void print_header(const Options& options, const collectives::Communicator& communicator,
                  double bound);
void print_row(const Options& options, const collectives::Communicator& communicator,
               const Result& result, double bound);
// The average bus bandwidth and the number of wrong elements of all rows.
void print_summary(const Options& options, double busbw, std::int64_t wrong);

}  // namespace shoal::perf
