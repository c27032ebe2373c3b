// A group of one rank: every operation is a copy.
#include <cstring>
#include <mutex>
#include <optional>

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/collectives/backend_communicator.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

// Host memory whose allocations the caller's CountingMemory counts.
class CountedHostMemory final : public MemoryResource {
 public:
  explicit CountedHostMemory(CountingMemory* books) : host_(make_host_memory()), books_(books) {}
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override {
    void* pointer = host_->allocate(bytes, tag, stream);
    if (books_) books_->count_external(static_cast<std::int64_t>(bytes), tag);
    return pointer;
  }
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                  Stream stream) noexcept override {
    host_->deallocate(pointer, bytes, tag, stream);
    if (books_) books_->count_external(-static_cast<std::int64_t>(bytes), tag);
  }
  Device device() const override { return Device::cpu(); }
  std::string name() const override { return "host memory of a communicator"; }

 private:
  std::unique_ptr<MemoryResource> host_;
  CountingMemory* books_;
};

class SingleCommunicator final : public BackendCommunicator {
 public:
  SingleCommunicator(std::string name, const CommunicatorOptions& options, int member)
      : name_(std::move(name)),
        options_(options),
        member_(member),
        reduction_(kernels::make_cpu_reduction()),
        memory_(make_counted_host_memory(options.counted_by)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string backend() const override { return name_; }
  MemoryResource& memory_resource() override { return *memory_; }
  CommunicatorStatistics statistics() const override { return statistics_; }  // no transport
  void abort(std::string_view reason) override {
    const std::lock_guard lock(mutex_);
    if (!failure_)
      failure_ = Error(ErrorCode::aborted, fmt::format("rank {} aborted: {}", member_, reason))
                     .at_rank(member_);
  }

 private:
  WorkPtr submit(Call&& call) override {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) throw Error(*failure_).in_operation(describe(call));
    }
    if (call.operation == Operation::all_to_all_v && call.counts != call.recv_counts)
      throw Error(ErrorCode::mismatch,
                  fmt::format("rank {} sends {} elements to rank {}, which expects {}", member_,
                              call.counts.front(), member_, call.recv_counts.front()));
    const std::int64_t bytes = call.send_bytes(0, 1);
    if (call.op == ReduceOp::premultiplied_sum)
      scale_into(*reduction_, call.dtype, call.send, call.factor, call.recv, call.count);
    else if (bytes > 0 && call.recv != call.send)
      std::memcpy(call.recv, call.send, static_cast<std::size_t>(bytes));
    ++statistics_.operations;
    return make_group_work({}, options_.deadline_seconds);
  }
  double deadline_seconds() const override { return options_.deadline_seconds; }
  std::unique_ptr<Communicator> make_split(const SplitPlan& plan) override {
    return plan.ranks.empty() ? nullptr : make_single_communicator(name_, options_, member_);
  }

  std::string name_;
  CommunicatorOptions options_;
  int member_;  // this rank in the job
  std::unique_ptr<kernels::ReductionKernels> reduction_;
  std::unique_ptr<MemoryResource> memory_;
  CommunicatorStatistics statistics_;
  std::mutex mutex_;  // abort() may come from any thread
  std::optional<Error> failure_;
};

}  // namespace

std::unique_ptr<MemoryResource> make_counted_host_memory(CountingMemory* counted_by) {
  return std::make_unique<CountedHostMemory>(counted_by);
}

std::unique_ptr<Communicator> make_single_communicator(std::string name,
                                                       const CommunicatorOptions& options,
                                                       int member) {
  return std::make_unique<SingleCommunicator>(std::move(name), options, member);
}

}  // namespace shoal::collectives
