// A group of ranks and its collective operations: what everyone else includes.
//
// Semantics are NCCL's: every rank of the group calls the same operations in the same order, from
// one thread at a time; an operation returns a Work at once and its buffers belong to it until that
// Work is done. Counts are elements. In place: send == recv (all_reduce), or send is this rank's
// part of recv (all_gather), or recv is this rank's part of send (reduce_scatter).
//
// Results are bit-identical on all ranks and between runs of one layout (decision 6). Every wait
// has a deadline. Who called another operation, dtype, count or reduction is named before its data
// is used (mismatch). A root may be done, and be ahead, before others call (docs/algorithms.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "shoal/collectives/reduction.h"
#include "shoal/collectives/work.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::collectives {

// What happened so far; no fallback is silent (decision 5).
struct CommunicatorStatistics {
  std::int64_t operations = 0;     // completed
  std::int64_t inlined = 0;        // of these: small ones that travelled inside the control message
  std::int64_t zero_copy = 0;      // in the ranks' own buffers: mapped, or copied by the kernel
  std::int64_t bounced = 0;        // through bounce slots, because a pointer was not symmetric
  std::int64_t bounced_bytes = 0;  // this rank's bytes copied into bounce slots
  std::int64_t ring = 0;
  std::int64_t by_progress_thread = 0;  // operations that the progress thread completed
  std::string transport;       // what carries the bytes: "shm", "tcp;ofi_rxm", "shm + efa", "mpi"
  std::string_view algorithm;  // of the last collective, as the selection table names it; or empty
};

// Keeps user memory registered with the transports for as long as it lives. A hint: nothing but
// speed depends on it.
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

  // Memory mapped by every rank of the node: collectives on it copy nothing. The pointer a rank
  // gets is its own. Allocation neither waits for other ranks nor need it happen in step with
  // them: each operation says where its buffers lie. Must outlive what was allocated from it.
  virtual MemoryResource& memory_resource() = 0;
  virtual std::unique_ptr<Registration> register_buffer(void* data, std::int64_t bytes);
  virtual CommunicatorStatistics statistics() const = 0;
  // Where its buffers are, and what a call that passes no stream is ordered on (options.stream).
  virtual Stream stream() const { return {}; }
  // The same ranks for values in host memory, as losses and norms that were read are: itself,
  // unless its buffers are on a device (options.stream). No order between its calls and this one's.
  // The first call is collective.
  virtual Communicator& host() { return *this; }

  virtual WorkPtr all_reduce(const void* send, void* recv, std::int64_t count, DType dtype,
                             Reduction op, Stream stream = {}) = 0;
  // send holds size() × recv_count elements; rank r receives the r-th part.
  virtual WorkPtr reduce_scatter(const void* send, void* recv, std::int64_t recv_count, DType dtype,
                                 Reduction op, Stream stream = {}) = 0;
  virtual WorkPtr all_gather(const void* send, void* recv, std::int64_t send_count, DType dtype,
                             Stream stream = {}) = 0;
  // Parts of unequal length, packed in rank order; every rank passes the same counts, each may be
  // 0. In place as their equal forms.
  virtual WorkPtr reduce_scatter_v(const void* send, void* recv, Counts counts, DType dtype,
                                   Reduction op, Stream stream = {}) = 0;
  virtual WorkPtr all_gather_v(const void* send, void* recv, Counts counts, DType dtype,
                               Stream stream = {}) = 0;

  virtual WorkPtr broadcast(void* data, std::int64_t count, DType dtype, int root,
                            Stream stream = {}) = 0;
  // recv is read at the root only; in place there: send == recv.
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
  // The same with unequal parts, packed in rank order: what rank a sends to b is what b receives
  // from a (checked).
  virtual WorkPtr all_to_all_v(const void* send, Counts send_counts, void* recv, Counts recv_counts,
                               DType dtype, Stream stream = {}) = 0;
  virtual WorkPtr barrier(Stream stream = {}) = 0;

  // Between two ranks; the k-th send from a to b meets the k-th recv of b from a, whatever
  // collectives run meanwhile. Not to oneself. Counts and dtypes must agree (checked).
  virtual WorkPtr send(const void* data, std::int64_t count, DType dtype, int peer,
                       Stream stream = {}) = 0;
  virtual WorkPtr recv(void* data, std::int64_t count, DType dtype, int peer,
                       Stream stream = {}) = 0;

  // Coalesced: nothing called between the two moves before end_group(), whose Work is done when all
  // of it is. Calls inside return null. They must not depend on each other: they run side by side,
  // in any order, or fused into one. Groups nest as NCCL's do: an inner end_group() returns null. A
  // refused call throws and gives the whole group up.
  virtual void begin_group() = 0;
  virtual WorkPtr end_group() = 0;

  // Ranks of one color form a new group, ordered by (key, rank); null for color < 0. Collective and
  // blocking; not inside a group. Independent of this Communicator, which may end first.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Whether calls may be made on a stream that is being captured (DeviceBackend::begin_capture):
  // each launch of the graph then carries them out, which every rank's must, with graphs of the
  // same calls. Their Works are good for block_stream() alone, before the capture ends. False where
  // hosts take part in each operation.
  virtual bool can_capture() const { return false; }
  // Where operations run on streams: done when all that has been queued on `stream` is, calls of
  // graphs too. Who waits has the deadline, and the Errors, of a call. Not collective. Else null:
  // hosts take part in each operation, and so end it.
  virtual WorkPtr watch(Stream stream);

  // Gives up everything in flight, here and, as soon as they notice, on all other ranks, whose
  // waits throw aborted with `reason` and this rank's number. May be called from any thread. What
  // this Communicator was split from, or into, may be given up with it: native groups over several
  // hosts share one transport, and end together.
  virtual void abort(std::string_view reason) = 0;
};

struct CommunicatorOptions {
  std::string backend = "native";  // auto (native or nccl), native, mpi, nccl; others are refused
  std::string algorithm;           // forces one, as the selection table names it; empty: by table
  // Rules of selection (select/algorithm_selector.h) after SHOAL_COLLECTIVES'; equal on all ranks.
  std::string collectives;
  // native: shm, tcp, udp, efa, or a libfabric provider's name; empty: shared memory inside a host,
  // the best provider between hosts.
  std::string transport;
  // Decision 6: the same result to the bit whatever the algorithm, slicing or ranks per host.
  bool fixed_order = false;
  // Buffers are in the memory of its device, and a call that passes no stream is ordered on it
  // (Kernels::stream()). The host's: host memory, and calls are done when their Work is.
  Stream stream{};
  // make_communicator's own: the device of the Communicator for whose hosts this one is made, so
  // that the transport is asked to reach its memory too.
  Device wired_device{};
  double deadline_seconds = 0;  // of every wait; 0: SHOAL_DEADLINE_S (600 s)
  // Where a failure is written down for `shoal diagnose`; empty: SHOAL_FLIGHT_DIR, if it is set.
  std::string flight_directory;
  CountingMemory* counted_by = nullptr;  // symmetric memory is counted there; may be null
  // What slices of a device's buffers on their way through the host are taken from: pinned host
  // memory, which outlives the Communicator and all that are split from it. Null: their own, that
  // nobody counts.
  MemoryResource* pinned = nullptr;
};

// Builds the group of all ranks of `world`; collective. `store` must outlive the result.
// A single rank needs no store traffic and works with every backend name.
std::unique_ptr<Communicator> make_communicator(const World& world, Store& store,
                                                const CommunicatorOptions& options = {});

}  // namespace shoal::collectives
