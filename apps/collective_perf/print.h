// Rows of shoal-collective-perf: nccl-tests' table with minimum and p99, or JSON lines.
#pragma once

#include "measure.h"

namespace shoal::perf {

void print_header(const Options& options, const collectives::Communicator& communicator);
void print_row(const Options& options, const collectives::Communicator& communicator,
               const Result& result);
// The average bus bandwidth and the number of wrong elements of all rows.
void print_summary(const Options& options, double busbw, std::int64_t wrong);

}  // namespace shoal::perf
