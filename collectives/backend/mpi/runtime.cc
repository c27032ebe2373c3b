#include "shoal/collectives/backend/mpi/runtime.h"

#include <cstdlib>
#include <string>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/kept_signals.h"

namespace shoal::collectives::mpi {

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw_error(ErrorCode::io, "mpi: {}: {}", what,
              std::string(text, static_cast<std::size_t>(length)));
}

MpiRuntime& MpiRuntime::instance() {
  static MpiRuntime runtime;
  return runtime;
}

MpiRuntime::MpiRuntime() {
  int initialized = 0, provided = 0;
  MPI_Initialized(&initialized);
  if (!initialized) {
    if (!std::getenv("OMPI_COMM_WORLD_SIZE") && !std::getenv("PMI_SIZE") &&
        !std::getenv("PMIX_RANK"))
      throw Error(
          ErrorCode::unavailable, "the mpi backend needs its ranks started by mpirun",
          "start with mpirun, or use the native backend (SHOAL_BACKEND, ddp_backend or --backend)");
    const KeptSignals kept;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init");
    ours_ = true;
  } else {
    MPI_Query_thread(&provided);
  }
  if (provided < MPI_THREAD_SERIALIZED)
    throw_error(ErrorCode::unavailable,
                "mpi: this MPI gives thread level {}, MPI_THREAD_SERIALIZED ({}) is needed",
                provided, MPI_THREAD_SERIALIZED);
}

MpiRuntime::~MpiRuntime() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (ours_ && !finalized && !failed) MPI_Finalize();
}

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return MPI_FLOAT;
    case DType::f64:
      return MPI_DOUBLE;
    case DType::i64:
      return MPI_INT64_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::u8:
      return MPI_UINT8_T;
    case DType::i8:
      return MPI_INT8_T;
    case DType::bf16:
    case DType::f16:
      return MPI_UINT16_T;  // MPI only moves these, it never adds them
  }
  SHOAL_ASSERT(false);
}

}  // namespace shoal::collectives::mpi
