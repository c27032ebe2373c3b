#include "shoal/parallel/data/bucket_reduction.h"

#include <optional>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

class AllReduction final : public BucketReduction {
 public:
  explicit AllReduction(collectives::Communicator& communicator) : communicator_(communicator) {
    // NCCL computes on the stream of the call. Operations that hosts run have streams of their own.
    if (const Stream own = communicator.stream();
        !own.device.is_cpu() && communicator.can_capture())
      lane_.emplace(own.device);
  }
  int ranks() const override { return communicator_.size(); }
  MemoryResource& memory() override { return communicator_.memory_resource(); }
  Stream stream() const override { return communicator_.stream(); }
  collectives::WorkPtr start(float* data, std::int64_t count) override {
    const Stream stream = lane_ ? lane_->behind(communicator_.stream()) : Stream{};
    return communicator_.all_reduce(data, data, count, DType::f32, collectives::ReduceOp::sum,
                                    stream);
  }
  void agree(std::span<std::int32_t> numbers) override {
    const auto count = static_cast<std::int64_t>(numbers.size());
    communicator_.host().broadcast(numbers.data(), count, DType::i32, 0)->wait();
  }
  void abort(std::string_view reason) override { communicator_.abort(reason); }

 private:
  // A separate stream, so that reductions run concurrently with backward.
  class Lane {
   public:
    explicit Lane(Device device) : stream_(device, StreamPriority::high), written_(device) {}
    // Returns the lane's stream. Work queued on it later follows everything now queued on `other`.
    Stream behind(Stream other) {
      written_.record(other);
      written_.block_stream(stream_.view());
      return stream_.view();
    }

   private:
    OwnedStream stream_;
    Event written_;
  };

  collectives::Communicator& communicator_;
  std::optional<Lane> lane_;
};

class NoReduction final : public BucketReduction {
 public:
  NoReduction(MemoryResource& memory, Stream stream) : memory_(memory), stream_(stream) {}
  int ranks() const override { return 1; }
  MemoryResource& memory() override { return memory_; }
  Stream stream() const override { return stream_; }
  collectives::WorkPtr start(float*, std::int64_t) override {
    throw_error(ErrorCode::internal, "gradients of one rank are to be summed");
  }
  void agree(std::span<std::int32_t>) override {}
  void abort(std::string_view) override {}

 private:
  MemoryResource& memory_;
  Stream stream_;
};

}  // namespace

// Multiplies the sum of a rank that does not count by 0, so it adds nothing. A sum that is not
// finite becomes NaN: the rank's veto.
collectives::WorkPtr sum_squares_in_place(collectives::Communicator& ranks,
                                          kernels::ReductionKernels& kernels, const Tensor& sum,
                                          bool counts, Stream stream) {
  if (ranks.size() == 1) return nullptr;
  void* const data = sum.view().data;
  if (!counts) kernels.scale(DType::f64, data, 0, 1, stream);
  collectives::WorkPtr work =
      ranks.all_reduce(data, data, 1, DType::f64, collectives::ReduceOp::sum, stream);
  work->block_stream(stream);
  return work;
}

std::shared_ptr<BucketReduction> make_no_reduction(MemoryResource& memory, Stream stream) {
  return std::make_shared<NoReduction>(memory, stream);
}

std::shared_ptr<BucketReduction> make_all_reduction(collectives::Communicator& communicator) {
  return std::make_shared<AllReduction>(communicator);
}

}  // namespace shoal::parallel
