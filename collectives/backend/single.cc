// A group of one rank: every operation is a copy.
#include <cstring>

#include "shoal/collectives/backend/arguments.h"
#include "shoal/collectives/backend/backends.h"

namespace shoal::collectives {
namespace {

class DoneWork final : public Work {
 public:
  explicit DoneWork(double deadline_seconds) : deadline_seconds_(deadline_seconds) {}
  bool test() override { return true; }
  void wait(Deadline) override {}
  double default_deadline_seconds() const override { return deadline_seconds_; }

 private:
  double deadline_seconds_;
};

// Passes on to the host's memory and counts in the caller's books.
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

class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator(std::string name, const CommunicatorOptions& options)
      : name_(std::move(name)),
        deadline_seconds_(options.deadline_seconds),
        memory_(make_counted_host_memory(options.counted_by)) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string backend() const override { return name_; }
  MemoryResource& memory_resource() override { return *memory_; }
  CommunicatorStatistics statistics() const override { return statistics_; }

  std::unique_ptr<Work> all_reduce(const void* send, void* recv, std::int64_t count, DType dtype,
                                   Reduction op, Stream stream) override {
    return run({Operation::all_reduce, send, recv, count, dtype, op.op, -1}, stream);
  }
  std::unique_ptr<Work> reduce_scatter(const void* send, void* recv, std::int64_t recv_count,
                                       DType dtype, Reduction op, Stream stream) override {
    return run({Operation::reduce_scatter, send, recv, recv_count, dtype, op.op, -1}, stream);
  }
  std::unique_ptr<Work> all_gather(const void* send, void* recv, std::int64_t send_count,
                                   DType dtype, Stream stream) override {
    return run({Operation::all_gather, send, recv, send_count, dtype, ReduceOp::sum, -1}, stream);
  }
  std::unique_ptr<Work> broadcast(void* data, std::int64_t count, DType dtype, int root,
                                  Stream stream) override {
    return run({Operation::broadcast, data, data, count, dtype, ReduceOp::sum, root}, stream);
  }
  std::unique_ptr<Work> barrier(Stream stream) override { return run({}, stream); }
  void abort(std::string_view) override {}

 private:
  std::unique_ptr<Work> run(const Call& call, Stream stream) {
    check_call(call, 0, 1, stream);
    if (call.count > 0 && call.recv != call.send)
      std::memcpy(call.recv, call.send, static_cast<std::size_t>(call.send_bytes(1)));
    ++statistics_.operations;
    return std::make_unique<DoneWork>(deadline_seconds_);
  }

  std::string name_;
  double deadline_seconds_;
  std::unique_ptr<MemoryResource> memory_;
  CommunicatorStatistics statistics_;
};

}  // namespace

std::unique_ptr<MemoryResource> make_counted_host_memory(CountingMemory* counted_by) {
  return std::make_unique<CountedHostMemory>(counted_by);
}

std::unique_ptr<Communicator> make_single_communicator(std::string name,
                                                       const CommunicatorOptions& options) {
  return std::make_unique<SingleCommunicator>(std::move(name), options);
}

}  // namespace shoal::collectives
