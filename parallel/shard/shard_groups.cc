#include "shoal/parallel/shard/shard_groups.h"

#include <deque>
#include <utility>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using collectives::ReduceOp;
using collectives::WorkPtr;

// The second hops begin in the order of the first hops, on every rank.
class TwoHops : public std::enable_shared_from_this<TwoHops> {
 public:
  explicit TwoHops(const ShardGroups& groups) : groups_(groups) {}

  WorkPtr start(float* data, std::int64_t count) {
    const auto entry = std::make_shared<Entry>();
    entry->count = count / groups_.shards();
    entry->part = data + groups_.rank() * entry->count;
    entry->first =
        groups_.shard->reduce_scatter(data, entry->part, entry->count, DType::f32, ReduceOp::sum);
    waiting_.push_back(entry);
    // An NCCL call waits in the stream for the calls before it: every rank must queue both groups'
    // calls in the same order.
    if (groups_.replicas->backend() == "nccl") go_on();
    return std::make_unique<Handle>(shared_from_this(), entry);
  }

 private:
  struct Entry {
    float* part = nullptr;
    std::int64_t count = 0;
    WorkPtr first, second;
  };
  class Handle final : public collectives::Work {
   public:
    Handle(std::shared_ptr<TwoHops> hops, std::shared_ptr<Entry> entry)
        : hops_(std::move(hops)), entry_(std::move(entry)) {}
    bool test() override {
      while (!entry_->second && hops_->waiting_.front()->first->test()) hops_->go_on();
      return entry_->second && entry_->second->test();
    }
    void wait(Deadline deadline) override {
      while (!entry_->second) {
        hops_->waiting_.front()->first->wait(deadline);
        hops_->go_on();
      }
      entry_->second->wait(deadline);
    }
    void block_stream(Stream stream) override {
      while (!entry_->second) {
        hops_->waiting_.front()->first->block_stream(hops_->groups_.replicas->stream());
        hops_->go_on();
      }
      entry_->second->block_stream(stream);
    }
    double default_deadline_seconds() const override {
      return entry_->first->default_deadline_seconds();
    }

   private:
    std::shared_ptr<TwoHops> hops_;
    std::shared_ptr<Entry> entry_;
  };
  // Starts the second hop of the front entry. Its first hop is done, or (NCCL) precedes the second
  // in the stream.
  void go_on() {
    Entry& entry = *waiting_.front();
    entry.second = groups_.replicas->all_reduce(entry.part, entry.part, entry.count, DType::f32,
                                                ReduceOp::sum);
    waiting_.pop_front();
  }

  ShardGroups groups_;
  std::deque<std::shared_ptr<Entry>> waiting_;
};

class ShardReduction final : public BucketReduction {
 public:
  explicit ShardReduction(const ShardGroups& groups)
      : groups_(groups), hops_(std::make_shared<TwoHops>(groups)) {}
  int ranks() const override { return groups_.shards() * groups_.copies(); }
  int parts() const override { return groups_.shards(); }
  MemoryResource& memory() override { return groups_.shard->memory_resource(); }
  Stream stream() const override { return groups_.shard->stream(); }
  WorkPtr start(float* data, std::int64_t count) override {
    if (groups_.shards() == 1)
      return groups_.replicas->all_reduce(data, data, count, DType::f32, ReduceOp::sum);
    if (groups_.copies() > 1) return hops_->start(data, count);
    const std::int64_t part = count / groups_.shards();
    return groups_.shard->reduce_scatter(data, data + groups_.rank() * part, part, DType::f32,
                                         ReduceOp::sum);
  }
  void agree(std::span<std::int32_t> numbers) override {
    const auto count = static_cast<std::int64_t>(numbers.size());
    groups_.shard->host().broadcast(numbers.data(), count, DType::i32, 0)->wait();
    // Now the ranks of each shard group agree. In each `replicas` group, rank 0 belongs to the
    // first shard group and broadcasts its numbers.
    if (groups_.replicas)
      groups_.replicas->host().broadcast(numbers.data(), count, DType::i32, 0)->wait();
  }
  void abort(std::string_view reason) override {
    groups_.shard->abort(reason);
    if (groups_.replicas) groups_.replicas->abort(reason);
  }

 private:
  ShardGroups groups_;
  std::shared_ptr<TwoHops> hops_;
};

}  // namespace

std::shared_ptr<BucketReduction> make_shard_reduction(const ShardGroups& groups) {
  SHOAL_CHECK(groups.shard != nullptr, "a sharded reduction without a shard group");
  return std::make_shared<ShardReduction>(groups);
}

}  // namespace shoal::parallel
