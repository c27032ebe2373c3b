#include "shoal/parallel/data/bucket_reduction.h"

namespace shoal::parallel {
namespace {

class AllReduction final : public BucketReduction {
 public:
  explicit AllReduction(collectives::Communicator& communicator) : communicator_(communicator) {}
  int ranks() const override { return communicator_.size(); }
  MemoryResource& memory() override { return communicator_.memory_resource(); }
  Stream stream() const override { return communicator_.stream(); }
  collectives::WorkPtr start(float* data, std::int64_t count) override {
    return communicator_.all_reduce(data, data, count, DType::f32, collectives::ReduceOp::sum);
  }
  void agree(std::span<std::int32_t> numbers) override {
    const auto count = static_cast<std::int64_t>(numbers.size());
    communicator_.host().broadcast(numbers.data(), count, DType::i32, 0)->wait();
  }
  void abort(std::string_view reason) override { communicator_.abort(reason); }

 private:
  collectives::Communicator& communicator_;
};

}  // namespace

std::shared_ptr<BucketReduction> make_all_reduction(collectives::Communicator& communicator) {
  return std::make_shared<AllReduction>(communicator);
}

}  // namespace shoal::parallel
