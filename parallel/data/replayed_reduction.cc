// Sums whose hosts take part, of steps that are captured in pieces.
#include <algorithm>
#include <utility>
#include <vector>

#include "shoal/parallel/data/bucket_reduction.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// What one call of start() has under way in this replay.
struct Slot {
  collectives::WorkPtr work;
};

// Of a step that is captured: no sum is under way yet.
class NotedWork final : public collectives::Work {
 public:
  NotedWork(std::shared_ptr<Slot> slot, const nn::HostWork& host_work)
      : slot_(std::move(slot)), host_work_(host_work) {}
  bool test() override { return false; }
  void wait(Deadline) override {
    throw_error(ErrorCode::internal, "a sum of a captured step is waited for by its host");
  }
  double default_deadline_seconds() const override { return 0; }
  void block_stream(Stream stream) override {
    // Taken out first: after an Error nothing may wait for it again.
    host_work_.run([slot = slot_, stream] {
      const collectives::WorkPtr work = std::move(slot->work);
      if (work) work->block_stream(stream);
    });
  }

 private:
  std::shared_ptr<Slot> slot_;
  const nn::HostWork& host_work_;
};

class ReplayedReduction final : public BucketReduction {
 public:
  ReplayedReduction(std::shared_ptr<BucketReduction> reduction, const nn::HostWork& host_work)
      : reduction_(std::move(reduction)), host_work_(host_work) {}
  ~ReplayedReduction() override {
    try {
      for (const std::shared_ptr<Slot>& slot : slots_) {
        if (!slot->work || slot->work->test()) continue;
        reduction_->abort("a step ended in the middle of its replay");
        slot->work->wait(Deadline::in_seconds(0));
      }
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): it has failed, as it should
    }
  }
  ReplayedReduction(const ReplayedReduction&) = delete;
  ReplayedReduction& operator=(const ReplayedReduction&) = delete;

  int ranks() const override { return reduction_->ranks(); }
  int parts() const override { return reduction_->parts(); }
  MemoryResource& memory() override { return reduction_->memory(); }
  Stream stream() const override { return reduction_->stream(); }
  collectives::WorkPtr start(float* data, std::int64_t count) override {
    if (!host_work_.captured()) return reduction_->start(data, count);
    // Those that only this list still holds are of graphs that have gone.
    std::erase_if(slots_, [](const std::shared_ptr<Slot>& slot) {
      return slot.use_count() == 1 && !slot->work;
    });
    auto slot = std::make_shared<Slot>();
    slots_.push_back(slot);
    host_work_.run([reduction = reduction_, slot, data, count] {
      slot->work = reduction->start(data, count);
    });
    return std::make_unique<NotedWork>(std::move(slot), host_work_);
  }
  void agree(std::span<std::int32_t> numbers) override { reduction_->agree(numbers); }
  void abort(std::string_view reason) override { reduction_->abort(reason); }

 private:
  const std::shared_ptr<BucketReduction> reduction_;
  const nn::HostWork& host_work_;
  std::vector<std::shared_ptr<Slot>> slots_;
};

}  // namespace

std::shared_ptr<BucketReduction> make_replayed_reduction(std::shared_ptr<BucketReduction> reduction,
                                                         const nn::HostWork& host_work) {
  return std::make_shared<ReplayedReduction>(std::move(reduction), host_work);
}

}  // namespace shoal::parallel
