// Sums that need the host, for steps that are captured in pieces.
#include <utility>

#include "shoal/parallel/data/bucket_reduction.h"
#include "shoal/parallel/replay/noted_works.h"

namespace shoal::parallel {
namespace {

// A replay runs all of start(), not only the Communicator's calls in it.
class ReplayedReduction final : public BucketReduction {
 public:
  ReplayedReduction(std::shared_ptr<BucketReduction> reduction, const nn::HostWork& host_work)
      : reduction_(std::move(reduction)), works_(host_work) {}
  ~ReplayedReduction() override {
    works_.give_up([this] { reduction_->abort("a step ended in the middle of its replay"); });
  }
  ReplayedReduction(const ReplayedReduction&) = delete;
  ReplayedReduction& operator=(const ReplayedReduction&) = delete;

  int ranks() const override { return reduction_->ranks(); }
  int parts() const override { return reduction_->parts(); }
  MemoryResource& memory() override { return reduction_->memory(); }
  Stream stream() const override { return reduction_->stream(); }
  collectives::WorkPtr start(float* data, std::int64_t count) override {
    if (!works_.notes()) return reduction_->start(data, count);
    return works_.note(
        [reduction = reduction_, data, count] { return reduction->start(data, count); });
  }
  void agree(std::span<std::int32_t> numbers) override { reduction_->agree(numbers); }
  void abort(std::string_view reason) override { reduction_->abort(reason); }

 private:
  const std::shared_ptr<BucketReduction> reduction_;
  NotedWorks works_;
};

}  // namespace

std::shared_ptr<BucketReduction> make_replayed_reduction(std::shared_ptr<BucketReduction> reduction,
                                                         const nn::HostWork& host_work) {
  return std::make_shared<ReplayedReduction>(std::move(reduction), host_work);
}

}  // namespace shoal::parallel
