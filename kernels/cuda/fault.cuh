// Error reports of kernels. The first kernel with a bad input fills a record in pinned host memory,
// which the next host call turns into an Error. The kernel continues with a harmless value.
#pragma once

#include <cstdint>

namespace shoal::kernels {

enum class Fault : std::uint32_t {
  none,
  id_outside_table,
  target_outside_vocabulary,
  step_is_zero,
};

struct FaultRecord {
  std::uint32_t kind;  // a Fault; written last
  std::uint32_t taken;
  std::int64_t place, value, limit;
};

#ifdef __CUDACC__
__device__ inline void report(FaultRecord* record, Fault kind, std::int64_t place,
                              std::int64_t value, std::int64_t limit) {
  // Threads of one kernel may race here. Any of their records will do, since only people read it.
  volatile FaultRecord* out = record;
  if (out->taken != 0) return;
  out->taken = 1;
  out->place = place;
  out->value = value;
  out->limit = limit;
  __threadfence_system();
  out->kind = static_cast<std::uint32_t>(kind);
}
#endif

}  // namespace shoal::kernels
