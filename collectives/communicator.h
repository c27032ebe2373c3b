// A group of ranks and its collective operations.
//
//   std::vector<float> numbers(1000, 1.0F);
//   collectives::WorkPtr work = job.communicator().all_reduce(
//       numbers.data(), numbers.data(), 1000, DType::f32, collectives::ReduceOp::sum);
//   work->wait();  // now each number is the count of ranks; throws if a rank is lost
//
// The semantics are NCCL's. Every rank of the group calls the same operations in the same order,
// from one thread at a time. In place means: send == recv (all_reduce), send is this rank's part of
// recv (all_gather), or recv is this rank's part of send (reduce_scatter).
//
// - Shapes: buffers are dense. Counts are elements of `dtype`, not bytes.
// - Ownership: the caller's buffers belong to the operation until its Work is done.
// - Stream: device buffers are used after the work already queued on `stream` (default: stream()).
// - Blocking: a call returns a Work at once unless its comment says otherwise. Every wait has a
//   deadline (SHOAL_DEADLINE_S).
// - Errors: a wrong argument throws invalid_argument. The Work throws timeout, peer_lost, aborted
//   or mismatch. mismatch names a rank whose operation, dtype, count or reduction differs, before
//   its data is used. After an Error of a Work, the group has failed: each later call throws that
//   Error.
//
// Results are bit-identical on all ranks and between runs of one layout (decision 6). A root may
// finish before other ranks have made the call (docs/internals/algorithms.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "shoal/collectives/transport/reduction.h"
#include "shoal/collectives/work.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::collectives {

class BackendCommunicator;
struct CommunicatorStatistics;  // communicator_options.h

// Keeps user memory registered with the transports while it lives. This is a hint: it affects only
// speed.
class Registration {
 public:
  virtual ~Registration() = default;
};

using Counts = std::span<const std::int64_t>;  // elements, one number for each rank

// One rank's view of its group. The caller owns it.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string backend() const = 0;  // "native", "mpi", "nccl"

  // Memory that every rank of the node maps, so that collectives on it copy nothing. Allocation is
  // local: other ranks need not allocate too. This Communicator must outlive the memory.
  virtual MemoryResource& memory_resource() = 0;
  virtual std::unique_ptr<Registration> register_buffer(void* data, std::int64_t bytes);
  virtual CommunicatorStatistics statistics() const = 0;
  // The default stream of calls: on the device that holds the buffers, or a host stream.
  virtual Stream stream() const { return {}; }
  // A Communicator of the same ranks for values in host memory, such as losses and norms; *this if
  // buffers are in host memory anyway. Calls on the two are not ordered with each other. The
  // first host() is collective.
  virtual Communicator& host() { return *this; }

  // Every rank receives the `count` reduced elements.
  WorkPtr all_reduce(const void* send, void* recv, std::int64_t count, DType dtype, Reduction op,
                     Stream stream = {});
  // send holds size() × recv_count elements; rank r receives the r-th part.
  WorkPtr reduce_scatter(const void* send, void* recv, std::int64_t recv_count, DType dtype,
                         Reduction op, Stream stream = {});
  // recv holds size() × send_count elements: part r comes from rank r.
  WorkPtr all_gather(const void* send, void* recv, std::int64_t send_count, DType dtype,
                     Stream stream = {});
  // Parts of unequal length, packed in rank order. Every rank passes the same counts; counts may be
  // 0.
  WorkPtr reduce_scatter_v(const void* send, void* recv, Counts counts, DType dtype, Reduction op,
                           Stream stream = {});
  WorkPtr all_gather_v(const void* send, void* recv, Counts counts, DType dtype,
                       Stream stream = {});

  // `data` is sent from the root and overwritten on the other ranks.
  WorkPtr broadcast(void* data, std::int64_t count, DType dtype, int root, Stream stream = {});
  // recv is used at the root only. In place at the root: send == recv.
  WorkPtr reduce(const void* send, void* recv, std::int64_t count, DType dtype, Reduction op,
                 int root, Stream stream = {});
  // The root's recv holds size() × send_count elements in rank order; in place at the root: send is
  // its part of recv. recv may be null elsewhere.
  WorkPtr gather(const void* send, void* recv, std::int64_t send_count, DType dtype, int root,
                 Stream stream = {});
  // The root's send holds size() × recv_count elements; in place at the root: recv is its part of
  // send. send may be null elsewhere.
  WorkPtr scatter(const void* send, void* recv, std::int64_t recv_count, DType dtype, int root,
                  Stream stream = {});
  // Part p of send goes to rank p, part p of recv comes from rank p; send and recv must differ.
  WorkPtr all_to_all(const void* send, void* recv, std::int64_t count, DType dtype,
                     Stream stream = {});
  // all_to_all with unequal parts, packed in rank order. The count that rank a sends to b must
  // equal the count that b receives from a (checked).
  WorkPtr all_to_all_v(const void* send, Counts send_counts, void* recv, Counts recv_counts,
                       DType dtype, Stream stream = {});
  // The Work is done once every rank has called barrier().
  WorkPtr barrier(Stream stream = {});

  // Point to point: the k-th send from a to b matches the k-th recv of b from a, independently of
  // collectives in between. A rank cannot send to itself. Counts and dtypes must agree (checked).
  WorkPtr send(const void* data, std::int64_t count, DType dtype, int peer, Stream stream = {});
  WorkPtr recv(void* data, std::int64_t count, DType dtype, int peer, Stream stream = {});

  // Groups calls: nothing starts before end_group(), whose Work is done when all of them are. Calls
  // inside return null. They must not depend on each other, because they run concurrently, in any
  // order, or fused. An inner end_group() returns null. An invalid call discards the group.
  void begin_group();
  WorkPtr end_group();

  // Ranks of one color form a new group, ordered by (key, rank); null for color < 0. Collective and
  // blocking; not allowed inside a group. This Communicator may be destroyed before the new one.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

  // Whether calls may be made on a stream that is being captured (DeviceBackend::begin_capture).
  // Each launch of the graph then runs them; every rank must launch a graph of the same calls.
  // Until the capture ends, their Works support only block_stream(). False if host threads take
  // part in each operation.
  virtual bool can_capture() const { return false; }
  // Before a host thread waits for `stream` itself, it must wait for this Work. Once the Work is
  // done, no call made so far, graph launches included, makes the stream wait for another rank. The
  // Work has the deadline and Errors of a call. Not collective. Null: there is nothing to wait for.
  virtual WorkPtr watch(Stream stream);

  // Aborts everything in flight on this rank and, as soon as they notice, on all other ranks. Their
  // waits throw aborted with `reason` and this rank's number. May be called from any thread. Parent
  // and child communicators may be aborted too: native groups over several hosts end together.
  virtual void abort(std::string_view reason) = 0;

 private:
  friend class BackendCommunicator;  // its only subclass
  Communicator() = default;
};

}  // namespace shoal::collectives
