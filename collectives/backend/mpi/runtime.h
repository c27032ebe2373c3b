// MPI itself: one per process, MPI_THREAD_SERIALIZED behind one lock (decision 3).
#pragma once

#include <mpi.h>
// After mpi.h, which defines macros of its own.
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::collectives::mpi {

// Throws io with MPI's error text.
void check_mpi(int code, const char* what);

// Started once per process and ended at its exit if nothing failed (with a failed group,
// MPI_Finalize would hang).
class MpiRuntime {
 public:
  static MpiRuntime& instance();
  std::mutex mutex;  // around every MPI call
  std::atomic<bool> failed{false};
  // Memory of requests that never completed, kept until MPI itself ends. Guarded by the lock.
  std::vector<std::shared_ptr<void>> outstanding;

 private:
  MpiRuntime();
  ~MpiRuntime();
  bool ours_ = false;
};

MPI_Datatype mpi_type(DType dtype);

}  // namespace shoal::collectives::mpi
