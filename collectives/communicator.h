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
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/collectives/transport/operation.h"
#include "shoal/collectives/work.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal {
class Store;
struct World;
}  // namespace shoal

namespace shoal::collectives {

struct Call;
struct CommunicatorOptions;
struct CommunicatorStatistics;
struct OuterCall;
struct PlainCall;

// Keeps user memory registered with the transports while it lives. This is a hint: it affects only
// speed.
class Registration {
 public:
  virtual ~Registration() = default;
};

using Counts = std::span<const std::int64_t>;  // elements, one number for each rank

class Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

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

  WorkPtr all_reduce(const void* send, void* recv, std::int64_t count, DType dtype, Reduction op,
                     Stream stream = {});
  // send holds size() × recv_count elements; rank r receives the r-th part.
  WorkPtr reduce_scatter(const void* send, void* recv, std::int64_t recv_count, DType dtype,
                         Reduction op, Stream stream = {});
  WorkPtr all_gather(const void* send, void* recv, std::int64_t send_count, DType dtype,
                     Stream stream = {});
  // Parts of unequal length, packed in rank order. Every rank passes the same counts; a count may
  // be 0. In-place rules are those of the equal-sized forms.
  WorkPtr reduce_scatter_v(const void* send, void* recv, Counts counts, DType dtype, Reduction op,
                           Stream stream = {});
  WorkPtr all_gather_v(const void* send, void* recv, Counts counts, DType dtype,
                       Stream stream = {});

  WorkPtr broadcast(void* data, std::int64_t count, DType dtype, int root, Stream stream = {});
  // recv is used at the root only; in place there: send == recv.
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
  // The same with unequal parts, packed in rank order. The count that rank a sends to b must equal
  // the count that b receives from a (checked).
  WorkPtr all_to_all_v(const void* send, Counts send_counts, void* recv, Counts recv_counts,
                       DType dtype, Stream stream = {});
  WorkPtr barrier(Stream stream = {});

  // Point to point: the k-th send from a to b matches the k-th recv of b from a, independently of
  // collectives in between. A rank cannot send to itself. Counts and dtypes must agree (checked).
  WorkPtr send(const void* data, std::int64_t count, DType dtype, int peer, Stream stream = {});
  WorkPtr recv(void* data, std::int64_t count, DType dtype, int peer, Stream stream = {});

  // Any of the above from its record.
  WorkPtr call(Call call);

  // Coalesces calls: nothing starts before end_group(), whose Work is done when all of them are.
  // Calls inside return null. They must not depend on each other: they run concurrently, in any
  // order, or fused into one. Groups nest as in NCCL: an inner end_group() returns null. A refused
  // call throws and discards the whole group.
  void begin_group();
  WorkPtr end_group();

  // Ranks of one color form a new group, ordered by (key, rank); null for color < 0. Collective and
  // blocking; not allowed inside a group. This Communicator may be destroyed before the new one.
  virtual std::unique_ptr<Communicator> split(int color, int key);

  // Whether calls may be made on a stream that is being captured (DeviceBackend::begin_capture).
  // Each launch of the graph then runs them; every rank must launch a graph of the same calls.
  // Before the capture ends, their Works support only block_stream(). False if hosts take part in
  // each operation.
  virtual bool can_capture() const { return false; }
  // A Work for a host that is about to wait for `stream`. Once it is done, the stream waits for no
  // other rank's part in the calls made so far, graph launches included. Waiting on it has a call's
  // deadline and Errors. Not collective. Null: there is nothing to wait for.
  virtual WorkPtr watch(Stream stream);

  // Aborts everything in flight on this rank and, as soon as they notice, on all other ranks. Their
  // waits throw aborted with `reason` and this rank's number. May be called from any thread. Parent
  // and child communicators (split) may be aborted too: native groups over several hosts share one
  // transport and end together.
  virtual void abort(std::string_view reason) = 0;

  // Of every wait.
  virtual double deadline_seconds() const = 0;
  // The kind of memory that buffers are in.
  virtual DeviceType device_type() const { return DeviceType::cpu; }
  // Later calls are steps of that call of another Communicator; nullopt: calls are its own again.
  void on_behalf_of(std::optional<OuterCall> outer);

 protected:
  Communicator();
  // Submits a checked call outside a group.
  virtual WorkPtr submit(Call&& call) = 0;
  // Submits an unchecked call if it equals an earlier one, which makes it valid. Null if the
  // backend cannot tell.
  virtual WorkPtr repeat(const PlainCall& /*call*/) { return nullptr; }
  // For a Communicator that passes its calls on.
  static WorkPtr repeat_in(Communicator& inner, const PlainCall& call) { return inner.again(call); }
  // Submits the calls of a group in order; never empty. The default submits one after the other.
  virtual WorkPtr submit_group(std::vector<Call> calls);

  // Gathers every rank's color and key, in rank order. Blocking and collective.
  struct Place {
    std::int64_t color = 0, key = 0;
  };
  virtual std::vector<Place> exchange_places(Place own);
  // The ranks of this rank's color in their new order. `ordinal` counts the splits of this
  // Communicator; `color` is that of the new group. With empty `ranks` the rank still takes part if
  // the backend needs every rank, and gets null.
  struct SplitPlan {
    std::int64_t ordinal = 0;
    int color = 0;
    std::vector<int> ranks;  // of this Communicator
    int rank = -1;           // this rank in the new group
  };
  virtual std::unique_ptr<Communicator> make_split(const SplitPlan& plan);

 private:
  WorkPtr again(const PlainCall& call);
  WorkPtr make(const PlainCall& plain, const Stream& stream, double factor = 1);
  WorkPtr take(Call&& call);

  struct Calls;  // the group that is being made, and whose step the calls are
  std::unique_ptr<Calls> calls_;
};

// A Work that is done when all are; `works` may be empty.
WorkPtr make_group_work(std::vector<WorkPtr> works, double deadline_seconds);

// Builds the group of all ranks of `world`; collective. `store` must outlive the result.
// A single rank needs no store traffic and works with every backend name.
std::unique_ptr<Communicator> make_communicator(const World& world, Store& store,
                                                const CommunicatorOptions& options);
// With the default options.
std::unique_ptr<Communicator> make_communicator(const World& world, Store& store);

}  // namespace shoal::collectives
