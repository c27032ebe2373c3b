// How a Communicator is made, and what it has counted.
//
//   collectives::CommunicatorOptions options;
//   options.backend = "mpi";
//   const auto communicator = collectives::make_communicator(world, store, options);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal {
class Store;
struct World;
}  // namespace shoal

namespace shoal::collectives {

// How the ranks of a group communicate. Ranks pass equal options, except for `stream`,
// `flight_directory`, `counted_by` and `pinned`.
struct CommunicatorOptions {
  std::string backend = "native";  // auto (native or nccl), native, mpi, nccl; others are refused
  // Forces this algorithm, by its name in selection tables. Empty: the table decides.
  std::string algorithm;
  // Selection rules (select/algorithm_selector.h) appended after SHOAL_COLLECTIVES; equal on all
  // ranks.
  std::string collectives;
  // native: shm, tcp, udp, efa, or the name of a libfabric provider. Empty: shared memory inside a
  // host, the best provider between hosts.
  std::string transport;
  // Decision 6: results are bit-identical whatever the algorithm, slicing or ranks per host.
  bool fixed_order = false;
  // The default stream of calls (Kernels::stream()). Buffers are in the memory of its device. On a
  // host stream, buffers are in host memory, and an operation is done when its Work is done.
  Stream stream{};
  // Set only by make_communicator, for the host communicator of a device group: the device whose
  // memory the transport should reach too.
  Device rdma_device{};
  double deadline_seconds = 0;  // of every wait; 0: SHOAL_DEADLINE_S (600 s)
  // The directory of failure records for `shoal diagnose`; empty: SHOAL_FLIGHT_DIR, if set.
  std::string flight_directory;
  CountingMemory* counted_by = nullptr;  // counts symmetric memory; may be null
  // Pinned host memory for staging slices of device buffers through the host. It must outlive the
  // Communicator and all its splits. Null: each communicator allocates its own, uncounted.
  MemoryResource* pinned = nullptr;
};

// Counters since the communicator was made. Every fallback is counted (decision 5).
struct CommunicatorStatistics {
  std::int64_t operations = 0;     // completed
  std::int64_t inlined = 0;        // of these: small ones carried inside the control message
  std::int64_t zero_copy = 0;      // without bounce slots: peers map the buffers, or Linux copies
  std::int64_t bounced = 0;        // through bounce slots, because a pointer was not symmetric
  std::int64_t bounced_bytes = 0;  // this rank's bytes copied into bounce slots
  std::int64_t ring = 0;
  std::int64_t by_progress_thread = 0;  // operations that the progress thread completed
  std::string transport;       // carries the bytes: "shm", "tcp;ofi_rxm", "shm + efa", "mpi"
  std::string_view algorithm;  // of the last collective, named as in the table; or empty
  std::string why;             // the rule or option that chose it; or empty
};

// Builds the group of all ranks of `world`; collective. `store` must outlive the result.
// A single rank needs no store traffic and works with every backend name.
std::unique_ptr<Communicator> make_communicator(const World& world, Store& store,
                                                const CommunicatorOptions& options);
// With the default options.
std::unique_ptr<Communicator> make_communicator(const World& world, Store& store);

}  // namespace shoal::collectives
