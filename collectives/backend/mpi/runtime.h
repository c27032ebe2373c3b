// MPI itself: one per process, MPI_THREAD_SERIALIZED behind one lock (decision 3).
#pragma once

#include <mpi.h>
// These headers follow mpi.h, which defines macros of its own.
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::collectives::mpi {

// Throws io with MPI's error text.
void check_mpi(int code, const char* what);

// Starts MPI once per process and ends it at the process's exit. It does not end MPI if a group has
// failed, because MPI_Finalize would hang.
class MpiRuntime {
 public:
  static MpiRuntime& instance();
  std::mutex mutex;  // held around every MPI call
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
