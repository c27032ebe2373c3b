// A group of ranks and its collective operations. This is the header that other rooms include.
//
// The semantics are NCCL's. Every rank of the group calls the same operations in the same order,
// from one thread at a time. Each operation returns a Work at once and owns its buffers until that
// Work is done. Counts are elements. In place means: send == recv (all_reduce), send is this rank's
// part of recv (all_gather), or recv is this rank's part of send (reduce_scatter).
//
// Results are bit-identical on all ranks and between runs of one layout (decision 6). Every wait
// has a deadline. If a rank calls another operation, dtype, count or reduction, the mismatch error
// names it before its data is used. A root may finish and run ahead before other ranks call
// (docs/algorithms.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "shoal/collectives/reduction.h"
#include "shoal/collectives/work.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal {
class Store;
struct World;
}  // namespace shoal

namespace shoal::collectives {

// Counters since the communicator was made. No fallback is silent (decision 5).
struct CommunicatorStatistics {
  std::int64_t operations = 0;     // completed
  std::int64_t inlined = 0;        // of these: small ones carried inside the control message
  std::int64_t zero_copy = 0;      // in the ranks' own buffers: mapped, or copied by the kernel
  std::int64_t bounced = 0;        // through bounce slots, because a pointer was not symmetric
  std::int64_t bounced_bytes = 0;  // this rank's bytes copied into bounce slots
  std::int64_t ring = 0;
  std::int64_t by_progress_thread = 0;  // operations that the progress thread completed
  std::string transport;       // what carries the bytes: "shm", "tcp;ofi_rxm", "shm + efa", "mpi"
  std::string_view algorithm;  // of the last collective, named as in the table; or empty
};

// Keeps user memory registered with the transports while it lives. This is a hint: it affects only
// speed.
class Registration {
 public:
  virtual ~Registration() = default;
};

using Counts = std::span<const std::int64_t>;  // elements, one number for each rank

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string backend() const = 0;  // "native", "mpi", "nccl"

  // Memory mapped by every rank of the node: collectives on it copy nothing. Each rank has its own
  // pointer. Allocation is local: it neither waits for other ranks nor has to happen in step with
  // them, because each operation announces where its buffers lie. Must outlive its allocations.
  virtual MemoryResource& memory_resource() = 0;
  virtual std::unique_ptr<Registration> register_buffer(void* data, std::int64_t bytes);
  virtual CommunicatorStatistics statistics() const = 0;
  // Where the buffers are (options.stream); a call without a stream is ordered on it.
  virtual Stream stream() const { return {}; }
  // The same ranks for values in host memory, such as losses and norms. Returns *this unless the
  // buffers are on a device (options.stream). Its calls are not ordered with this communicator's.
  // The first call is collective.
  virtual Communicator& host() { return *this; }

  virtual WorkPtr all_reduce(const void* send, void* recv, std::int64_t count, DType dtype,
                             Reduction op, Stream stream = {}) = 0;
  // send holds size() × recv_count elements; rank r receives the r-th part.
  virtual WorkPtr reduce_scatter(const void* send, void* recv, std::int64_t recv_count, DType dtype,
                                 Reduction op, Stream stream = {}) = 0;
  virtual WorkPtr all_gather(const void* send, void* recv, std::int64_t send_count, DType dtype,
                             Stream stream = {}) = 0;
  // Parts of unequal length, packed in rank order. Every rank passes the same counts; a count may
  // be 0. In-place rules are those of the equal-sized forms.
  virtual WorkPtr reduce_scatter_v(const void* send, void* recv, Counts counts, DType dtype,
                                   Reduction op, Stream stream = {}) = 0;
  virtual WorkPtr all_gather_v(const void* send, void* recv, Counts counts, DType dtype,
                               Stream stream = {}) = 0;

  virtual WorkPtr broadcast(void* data, std::int64_t count, DType dtype, int root,
                            Stream stream = {}) = 0;
  // recv is used at the root only; in place there: send == recv.
  virtual WorkPtr reduce(const void* send, void* recv, std::int64_t count, DType dtype,
                         Reduction op, int root, Stream stream = {}) = 0;
  // The root's recv holds size() × send_count elements in rank order; in place at the root: send is
  // its part of recv. recv may be null elsewhere.
  virtual WorkPtr gather(const void* send, void* recv, std::int64_t send_count, DType dtype,
                         int root, Stream stream = {}) = 0;
  // The root's send holds size() × recv_count elements; in place at the root: recv is its part of
  // send. send may be null elsewhere.
  virtual WorkPtr scatter(const void* send, void* recv, std::int64_t recv_count, DType dtype,
                          int root, Stream stream = {}) = 0;
  // Part p of send goes to rank p, part p of recv comes from rank p; send and recv must differ.
  virtual WorkPtr all_to_all(const void* send, void* recv, std::int64_t count, DType dtype,
                             Stream stream = {}) = 0;
  // The same with unequal parts, packed in rank order. The count that rank a sends to b must equal
  // the count that b receives from a (checked).
  virtual WorkPtr all_to_all_v(const void* send, Counts send_counts, void* recv, Counts recv_counts,
                               DType dtype, Stream stream = {}) = 0;
  virtual WorkPtr barrier(Stream stream = {}) = 0;

  // Point to point: the k-th send from a to b matches the k-th recv of b from a, independently of
  // collectives in between. A rank cannot send to itself. Counts and dtypes must agree (checked).
  virtual WorkPtr send(const void* data, std::int64_t count, DType dtype, int peer,
                       Stream stream = {}) = 0;
  virtual WorkPtr recv(void* data, std::int64_t count, DType dtype, int peer,
                       Stream stream = {}) = 0;

  // Coalesces calls: nothing starts before end_group(), whose Work is done when all of them are.
  // Calls inside return null. They must not depend on each other: they run concurrently, in any
  // order, or fused into one. Groups nest as in NCCL: an inner end_group() returns null. A refused
  // call throws and discards the whole group.
  virtual void begin_group() = 0;
  virtual WorkPtr end_group() = 0;

  // Ranks of one color form a new group, ordered by (key, rank); null for color < 0. Collective and
  // blocking; not allowed inside a group. This Communicator may be destroyed before the new one.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Whether calls may be made on a stream that is being captured (DeviceBackend::begin_capture).
  // Each launch of the graph then runs them; every rank must launch a graph of the same calls.
  // Before the capture ends, their Works support only block_stream(). False if hosts take part in
  // each operation.
  virtual bool can_capture() const { return false; }
  // For backends whose operations run on streams: a Work that is done when everything queued on
  // `stream` so far is done, including graph launches. Waiting on it has a call's deadline and
  // Errors. Not collective. Null if hosts take part in each operation, because they then end it
  // themselves.
  virtual WorkPtr watch(Stream stream);

  // Aborts everything in flight on this rank and, as soon as they notice, on all other ranks. Their
  // waits throw aborted with `reason` and this rank's number. May be called from any thread. Parent
  // and child communicators (split) may be aborted too: native groups over several hosts share one
  // transport and end together.
  virtual void abort(std::string_view reason) = 0;
};

struct CommunicatorOptions {
  std::string backend = "native";  // auto (native or nccl), native, mpi, nccl; others are refused
  std::string algorithm;  // forces this algorithm, named as in the selection table; empty: by table
  // Selection rules (select/algorithm_selector.h) appended after SHOAL_COLLECTIVES; equal on all
  // ranks.
  std::string collectives;
  // native: shm, tcp, udp, efa, or the name of a libfabric provider. Empty: shared memory inside a
  // host, the best provider between hosts.
  std::string transport;
  // Decision 6: results are bit-identical whatever the algorithm, slicing or ranks per host.
  bool fixed_order = false;
  // Buffers are in the memory of this stream's device; a call without a stream is ordered on it
  // (Kernels::stream()). Host stream: buffers are in host memory, and an operation is done when its
  // Work is.
  Stream stream{};
  // Set by make_communicator only: the device whose hosts this communicator connects. The transport
  // is asked to reach that device's memory too.
  Device wired_device{};
  double deadline_seconds = 0;  // of every wait; 0: SHOAL_DEADLINE_S (600 s)
  // Where failures are recorded for `shoal diagnose`; empty: SHOAL_FLIGHT_DIR, if set.
  std::string flight_directory;
  CountingMemory* counted_by = nullptr;  // counts symmetric memory; may be null
  // Pinned host memory for staging slices of device buffers through the host. It must outlive the
  // Communicator and all its splits. Null: each communicator allocates its own, uncounted.
  MemoryResource* pinned = nullptr;
};

// Builds the group of all ranks of `world`; collective. `store` must outlive the result.
// A single rank needs no store traffic and works with every backend name.
std::unique_ptr<Communicator> make_communicator(const World& world, Store& store,
                                                const CommunicatorOptions& options = {});

}  // namespace shoal::collectives
