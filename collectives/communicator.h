// A group of ranks and its collective operations: what everyone else includes.
//
// Semantics are NCCL's: every rank of the group calls the same operations in the same order, from
// one thread at a time; an operation returns a Work at once and its buffers belong to it until that
// Work is done. Counts are elements. In place: send == recv (all_reduce), or send is this rank's
// part of recv (all_gather), or recv is this rank's part of send (reduce_scatter).
//
// Results are bit-identical on all ranks and between runs of one layout (decision 6). Every
// operation carries (operation, sequence, dtype, count, reduce operation); a rank that called
// something else is named before data moves (ErrorCode::mismatch). Every wait has a deadline.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/memory/memory_resource.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::collectives {

// avg of integers is refused; min and max propagate NaN; 16-bit floats accumulate in f32.
enum class ReduceOp : std::uint8_t { sum, prod, min, max, avg };
std::string_view to_string(ReduceOp op);

// One operation in flight. Not thread-safe. Dropping a Work does not cancel it: the progress
// thread finishes it. After an Error the Communicator has failed: everything in flight and every
// later call throws the same Error, and no buffer is touched any more.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool test() = 0;  // makes progress; true when done; throws the operation's Error
  // Blocks and drives progress itself. Throws timeout (naming the missing ranks), peer_lost,
  // mismatch or aborted.
  virtual void wait(Deadline deadline) = 0;
  void wait();  // with the Communicator's own deadline
  virtual double default_deadline_seconds() const = 0;
  // Later work on `stream` waits for this one. On host streams the same as wait().
  virtual void block_stream(Stream stream);
};

// What happened so far; no fallback is silent (decision 5).
struct CommunicatorStatistics {
  std::int64_t operations = 0;     // completed
  std::int64_t inlined = 0;        // of these: small ones that travelled inside the control message
  std::int64_t zero_copy = 0;      // all_reduce and others on symmetric memory
  std::int64_t bounced = 0;        // through bounce slots, because a pointer was not symmetric
  std::int64_t bounced_bytes = 0;  // this rank's bytes copied into bounce slots
  std::int64_t ring = 0;
  std::int64_t by_progress_thread = 0;  // operations that the progress thread completed
};

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
  virtual CommunicatorStatistics statistics() const = 0;

  virtual std::unique_ptr<Work> all_reduce(const void* send, void* recv, std::int64_t count,
                                           DType dtype, ReduceOp op, Stream stream = {}) = 0;
  // send holds size() × recv_count elements; rank r receives the r-th part.
  virtual std::unique_ptr<Work> reduce_scatter(const void* send, void* recv,
                                               std::int64_t recv_count, DType dtype, ReduceOp op,
                                               Stream stream = {}) = 0;
  virtual std::unique_ptr<Work> all_gather(const void* send, void* recv, std::int64_t send_count,
                                           DType dtype, Stream stream = {}) = 0;
  virtual std::unique_ptr<Work> broadcast(void* data, std::int64_t count, DType dtype, int root,
                                          Stream stream = {}) = 0;
  virtual std::unique_ptr<Work> barrier(Stream stream = {}) = 0;

  // Gives up everything in flight, here and, as soon as they notice, on all other ranks, whose
  // waits throw aborted with `reason` and this rank's number. May be called from any thread.
  virtual void abort(std::string_view reason) = 0;
};

struct CommunicatorOptions {
  std::string backend = "native";  // native, mpi, nccl; an unknown name is refused, naming these
  std::string algorithm;           // all_reduce of native: ring, direct; empty: by size
  double deadline_seconds = 600;
  CountingMemory* counted_by = nullptr;  // symmetric memory is counted there; may be null
};

// Builds the group of all ranks of `world`; collective. `store` must outlive the result.
// A single rank needs no store traffic and works with every backend name.
std::unique_ptr<Communicator> make_communicator(const World& world, Store& store,
                                                const CommunicatorOptions& options = {});

}  // namespace shoal::collectives
