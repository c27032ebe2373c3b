#include "shoal/collectives/algorithm/choice.h"
#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/native/engine.h"
#include "shoal/collectives/backend/native/symmetric_memory.h"

namespace shoal::collectives {
namespace {

class NativeWork final : public Work {
 public:
  NativeWork(std::shared_ptr<Engine> engine, std::shared_ptr<QueuedOperation> operation)
      : engine_(std::move(engine)), operation_(std::move(operation)) {}
  bool test() override { return engine_->test(*operation_); }
  void wait(Deadline deadline) override { engine_->wait(*operation_, deadline); }
  double default_deadline_seconds() const override { return engine_->deadline_seconds(); }

 private:
  std::shared_ptr<Engine> engine_;  // outlives the Communicator, so that a late wait can throw
  std::shared_ptr<QueuedOperation> operation_;
};

class NativeCommunicator final : public Communicator {
 public:
  NativeCommunicator(std::shared_ptr<Group> group, const CommunicatorOptions& options)
      : group_(group),
        memory_(group, options.counted_by, options.deadline_seconds),
        engine_(std::make_shared<Engine>(group, parse_algorithm(options.algorithm),
                                         options.deadline_seconds)) {}
  ~NativeCommunicator() override { engine_->stop(); }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string backend() const override { return "native"; }
  MemoryResource& memory_resource() override { return memory_; }
  CommunicatorStatistics statistics() const override { return engine_->statistics(); }

  std::unique_ptr<Work> all_reduce(const void* send, void* recv, std::int64_t count, DType dtype,
                                   Reduction op, Stream stream) override {
    return submit({Operation::all_reduce, send, recv, count, dtype, op.op, -1}, stream);
  }
  std::unique_ptr<Work> reduce_scatter(const void* send, void* recv, std::int64_t recv_count,
                                       DType dtype, Reduction op, Stream stream) override {
    return submit({Operation::reduce_scatter, send, recv, recv_count, dtype, op.op, -1}, stream);
  }
  std::unique_ptr<Work> all_gather(const void* send, void* recv, std::int64_t send_count,
                                   DType dtype, Stream stream) override {
    return submit({Operation::all_gather, send, recv, send_count, dtype, ReduceOp::sum, -1},
                  stream);
  }
  std::unique_ptr<Work> broadcast(void* data, std::int64_t count, DType dtype, int root,
                                  Stream stream) override {
    return submit({Operation::broadcast, data, data, count, dtype, ReduceOp::sum, root}, stream);
  }
  std::unique_ptr<Work> barrier(Stream stream) override { return submit({}, stream); }
  void abort(std::string_view reason) override { engine_->abort(reason); }

 private:
  std::unique_ptr<Work> submit(const Call& call, Stream stream) {
    check_call(call, rank(), size(), stream);
    return std::make_unique<NativeWork>(engine_, engine_->submit(call));
  }

  std::shared_ptr<Group> group_;
  SymmetricMemory memory_;
  std::shared_ptr<Engine> engine_;
};

}  // namespace

std::unique_ptr<Communicator> make_native_communicator(const World& world, Store& store,
                                                       const CommunicatorOptions& options) {
  // Each rank counts its own communicators; all make them in the same order, so the counts agree.
  const auto generation = store.add(fmt::format("shoal/native/generation/{}", world.rank), 1);
  auto group = std::make_shared<Group>(world.rank, world.size, store,
                                       fmt::format("shoal/native/{}", generation),
                                       Deadline::in_seconds(options.deadline_seconds));
  return std::make_unique<NativeCommunicator>(std::move(group), options);
}

}  // namespace shoal::collectives
