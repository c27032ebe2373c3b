// One operation in progress: a program, its buffers and its state. The engine reuses executions, so
// that a steady state allocates nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "shoal/collectives/backend/net/compiled_program.h"
#include "shoal/collectives/call.h"
#include "shoal/collectives/transport/endpoint.h"
#include "shoal/kernels/reduction.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/memory/memory_resource.h"

namespace shoal::collectives::net {

// Resources of executions; all must outlive them.
struct ExecutionContext {
  transport::Endpoint& endpoint;
  kernels::ReductionKernels& reduction;
  MemoryResource& scratch;
};

// Not thread-safe: guarded by the engine's lock.
class Execution {
 public:
  // `members`: by rank of the group, the rank in the endpoint. `members` and `call`'s buffers must
  // outlive the execution.
  void start(const ExecutionContext& context, std::shared_ptr<const CompiledProgram> program,
             const Call& call, transport::OperationKey key, const std::vector<int>& members);
  // Processes finished messages. Returns true if there were any.
  bool reap();
  // Starts all ready messages, and ready local work until `budget` bytes are spent. Returns true if
  // it started anything.
  bool run(const ExecutionContext& context, std::int64_t& budget);
  bool finished() const { return unfinished_ == 0; }
  // Releases the scratch.
  void finish();

  // Lists at most a few awaited messages for errors: "receive of 512 bytes from rank 3 (instruction
  // 7, for 10.0 s)". Adds all awaited peers to `peers`, as ranks of the endpoint.
  std::string missing(std::vector<int>& peers) const;

 private:
  struct State {
    int waits_for = 0;  // unfinished predecessors
    transport::Completion completion;
    Clock::time_point started;
  };

  void scale_input(const ExecutionContext& context, int rank);
  void complete(int index);
  void post(const ExecutionContext& context, int index);
  std::int64_t compute(const ExecutionContext& context, const algorithm::Instruction& instruction);
  void reduce(const ExecutionContext& context, const algorithm::Instruction& instruction);
  void fold_as_f32(const ExecutionContext& context, const algorithm::Instruction& instruction);
  void copy(const ExecutionContext& context, const algorithm::Instruction& instruction);
  double final_factor(const algorithm::Instruction& instruction) const {
    return finishes_with_scale(instruction) ? 1.0 / static_cast<double>(members_->size()) : 1;
  }
  bool finishes_with_scale(const algorithm::Instruction& instruction) const {
    return instruction.finish && call_->op == ReduceOp::avg;
  }
  std::int64_t element(algorithm::Space space) const {
    return space == algorithm::Space::partial ? partial_element_ : element_;
  }
  bool wide(algorithm::Space space) const {
    return space == algorithm::Space::partial && partial_element_ != element_;
  }
  std::byte* at(const algorithm::Piece& piece) const;

  std::shared_ptr<const CompiledProgram> program_;
  const Call* call_ = nullptr;
  transport::OperationKey key_;
  const std::vector<int>* members_ = nullptr;
  DType dtype_ = DType::u8;  // of the program's elements
  std::int64_t element_ = 1, partial_element_ = 1;
  const std::byte* input_ = nullptr;
  std::byte* output_ = nullptr;
  std::int64_t rounded_ = 0;  // elements of output_ that finish() rounds into call.recv
  Buffer scratch_, partial_, scaled_, wide_output_;
  std::vector<State> states_;
  std::vector<int> ready_;   // a heap, smallest instruction first
  std::vector<int> posted_;  // messages in flight
  std::vector<const void*> sources_;
  int unfinished_ = 0;
};

}  // namespace shoal::collectives::net
